"""The same in Lightning, one callback more than usual: python docs/examples/watch_lightning.py [FOLDER].

Then `isogon report FOLDER` draws the run.
"""

import sys

import lightning.pytorch as pl
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from isogon import nets, schedules
from isogon.integrations.lightning import IsogonCallback
from isogon.optim import drive
from isogon.report import summarise

BATCH, SAMPLES, EPOCHS, DROPS = 50, 5000, 8, (3, 6)


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nets.cnn4(in_channels=1, width=8, scale_invariant="plain")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net(images)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
        driver = drive(optimizer, schedules.step_decay(0.1, 5e-3, [drop * SAMPLES // BATCH for drop in DROPS]))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": driver, "interval": "step"}}


def main(folder: str) -> None:
    torch.manual_seed(0)
    patterns, labels = torch.randn(10, 1, 8, 8), torch.randint(0, 10, (SAMPLES,))
    images = patterns[labels] + 3 * torch.randn(SAMPLES, 1, 8, 8)
    watch = IsogonCallback(folder=folder, inputs=images[:BATCH])
    trainer = pl.Trainer(
        max_epochs=EPOCHS, callbacks=[watch], accelerator="cpu", logger=False, enable_checkpointing=False
    )
    trainer.fit(Classifier(), DataLoader(TensorDataset(images, labels), BATCH, shuffle=True))
    joint = watch.monitor.records.query("layer == 'all'").groupby("epoch").last()
    print(joint[["lr", "norm", "step_angle", "predicted_step_angle", "in_equilibrium"]].round(4).to_string())
    print(*(finding.advice for finding in summarise(folder).findings), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "run")
