"""Without its library each integration says which extra brings it."""

from __future__ import annotations

import importlib
import sys

import pytest

from isogon.errors import MissingExtraError


@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_a_callback_without_its_library(monkeypatch, library):
    module = f"isogon.integrations.{library}"
    hidden = [name for name in sys.modules if name == library or name.startswith(f"{library}.")]
    for name in {*hidden, library}:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(MissingExtraError, match=rf"^{library} is needed .* pip install 'isogon\[{library}\]'"):
        importlib.import_module(module)


def test_a_sink_without_its_library(monkeypatch, tmp_path):
    from isogon.integrations.mlflow import MlflowSink
    from isogon.integrations.tensorboard import TensorBoardSink
    from isogon.integrations.wandb import WandbSink

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    sinks = {"tensorboard": lambda: TensorBoardSink(tmp_path), "wandb": WandbSink, "mlflow": MlflowSink}
    for extra, make in sinks.items():
        with pytest.raises(MissingExtraError, match=rf"isogon\[{extra}\]"):
            make()
