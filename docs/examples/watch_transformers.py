"""The same with the Trainer of transformers and AdamW: python docs/examples/watch_transformers.py [FOLDER].

The model is a small ResNet: batch norm makes its convolutions scale-invariant. Then `isogon report FOLDER` draws the
run.
"""

import sys
from pathlib import Path

import torch
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments

from isogon import schedules
from isogon.integrations.transformers import IsogonCallback
from isogon.optim import drive
from isogon.report import summarise

BATCH, SAMPLES, EPOCHS, DROPS = 50, 5000, 8, (3, 6)


def main(folder: str) -> None:
    torch.manual_seed(0)
    patterns, labels = torch.randn(10, 1, 16, 16), torch.randint(0, 10, (SAMPLES,))
    images = patterns[labels] + 3 * torch.randn(SAMPLES, 1, 16, 16)
    model = ResNetForImageClassification(
        ResNetConfig(
            num_channels=1, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=10
        )
    )
    optimizer = torch.optim.AdamW(model.parameters())
    driver = drive(optimizer, schedules.step_decay(0.01, 2.0, [drop * SAMPLES // BATCH for drop in DROPS]))
    watch = IsogonCallback(folder=folder, inputs={"pixel_values": images[:BATCH]})
    arguments = TrainingArguments(
        output_dir=str(Path(folder) / "trainer"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        logging_strategy="epoch",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    data = [{"pixel_values": image, "labels": label} for image, label in zip(images, labels, strict=True)]
    Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, driver), callbacks=[watch]).train()
    joint = watch.monitor.records.query("layer == 'all'").groupby("epoch").last()
    print(joint[["lr", "norm", "step_angle", "predicted_step_angle", "in_equilibrium"]].round(4).to_string())
    print(*(finding.advice for finding in summarise(folder).findings), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "run")
