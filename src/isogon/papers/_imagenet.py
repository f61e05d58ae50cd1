"""ImageNet (ILSVRC 2012) as the experiments use it, and what stands in for it at scale `tiny`."""

from __future__ import annotations

#: training images
SAMPLES = 1_281_167
DATA, AUGMENTATION = "imagefolder:imagenet?size=256", "resized-crop:224"
#: small pictures that are read as ImageNet's are
DRAWN, DRAWN_IN_WORDS = "drawn-folders", "drawn stripes, written to files of ImageNet's layout and read back"
#: why the paper's scale was not run
NEEDED = (
    "ImageNet (ILSVRC 2012), which is given on request alone, must be there as imagenet/train/CLASS and "
    "imagenet/val/CLASS below the working folder; the lab keeps it in memory, 252 GB."
)
