"""How much of other people's models `isogon.check` cannot judge: timm's and Hugging Face's, each with random weights.

    pip install --no-deps timm torchvision
    python benchmarks/unknowns.py timm [--measure] [--only TEXT] [--json FILE]
    python benchmarks/unknowns.py transformers [--measure] [--only TEXT] [--json FILE]

Of timm one model per module is taken, the smallest by its name; of Hugging Face one per kind of configuration, made
small. With `--measure` every answer is compared with the numerical oracle. What cannot be built or called is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from machine import processor
from torch import nn

from isogon.errors import IsogonError, first_line
from isogon.symmetry import check

LARGEST = 150_000_000  # weights
Model = tuple[str, Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]]
_SMALL = ("test_", "atto", "pico", "femto", "nano", "_xxs", "xxtiny", "_xs", "tiny", "_s0", "_t0", "_b0", "_s", "18")


def timm_models() -> Iterator[Model]:
    """One model of each of timm's modules, by name."""
    operators = torch.library.Library("torchvision", "DEF")
    for signature in (
        "nms(Tensor dets, Tensor scores, float iou) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou) -> Tensor",
    ):
        operators.define(signature)  # compiled ones may not fit this torch; no model of timm calls them
    import timm

    def build(name: str) -> Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]:
        def make() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
            model = timm.create_model(name)
            size = model.default_cfg.get("input_size", (3, 224, 224))
            return model, (torch.randn(2, *size),), {}

        return make

    for module in timm.list_modules():
        names = [name for name in timm.list_models(module=module) if not name.startswith("test_")]
        if names:
            name = min(names, key=lambda name: (next((i for i, s in enumerate(_SMALL) if s in name), 99), len(name)))
            yield f"{module}: {name}", build(name)


#: what makes a configuration small, where it has such a field
_SIZES: dict[str, Any] = {
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "dim": 64, "embed_dim": 64, "num_hidden_layers": 2, "n_layer": 2,
    "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2, "num_decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "ffn_dim": 96,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "d_ff": 96, "d_kv": 16, "vocab_size": 99, "image_size": 128,
    "patch_size": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "embedding_size": 64,
    "max_position_embeddings": 64, "num_experts": 4, "num_local_experts": 4, "moe_intermediate_size": 48,
    "first_k_dense_replace": 1, "q_lora_rank": 32, "kv_lora_rank": 32, "num_experts_per_tok": 2, "n_routed_experts": 4,
}  # fmt: skip


def transformers_models() -> Iterator[Model]:
    """One small model of each of Hugging Face's configurations of text, images and sound."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    def build(kind: str) -> Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]:
        def make() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
            config = CONFIG_MAPPING[kind]()
            known = {name: value for name, value in _SIZES.items() if isinstance(getattr(config, name, None), int)}
            try:
                config = CONFIG_MAPPING[kind](**known)
            except Exception:  # a configuration that works out some of its sizes itself
                config = CONFIG_MAPPING[kind](**{name: known[name] for name in known if "head" not in name})
            auto = AutoModelForCausalLM if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else AutoModel
            with torch.device("meta"):
                size = sum(weight.numel() for weight in auto.from_config(config).parameters())
            if size > LARGEST:
                raise IsogonError(f"{size:,} weights are too many")
            model = auto.from_config(config)
            name = getattr(model, "main_input_name", "input_ids")
            ids = torch.randint(3, 90, (2, 12))
            if name == "input_ids":
                more = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
                return model, (), {"input_ids": ids, **more}
            if name == "pixel_values":
                size = getattr(config, "image_size", 224)
                size = size if isinstance(size, int) else size[0]
                return model, (), {name: torch.randn(2, getattr(config, "num_channels", 3), size, size)}
            if name == "input_values":
                return model, (), {name: torch.randn(2, 4000)}
            raise IsogonError(f"needs {name}")

        return make

    for kind in sorted(CONFIG_MAPPING):
        yield kind, build(kind)


class TooLong(Exception):
    """The model took longer than it may."""


def _stop(*_: Any) -> None:
    raise TooLong


def cause(reason: str) -> str:
    """A reason without the names in it, so that the same ones are counted together."""
    reason = re.sub(r"\b(batch|layer|instance|group)_norm\b", "norm", reason)
    reason = re.sub(r"\b[\w.]*\.(weight|bias|[\w]*embed\w*|[\w]*table)\b", "W", reason)
    return re.sub(r"[\w-]+(\.[\w-]+)+|\(in [^)]*\)", "M", reason)[:150]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=("timm", "transformers"))
    parser.add_argument("--measure", action="store_true", help="compare every answer with the oracle")
    parser.add_argument("--only", default="", help="only models whose name holds this")
    parser.add_argument("--seconds", type=int, default=120, help="that a model may take")
    parser.add_argument("--json", type=Path, help="write a row per model to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _stop)
    totals: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    models_of_cause: dict[str, set[str]] = defaultdict(set)
    rows: list[dict[str, Any]] = []
    for name, build in timm_models() if options.library == "timm" else transformers_models():
        if options.only not in name:
            continue
        row: dict[str, Any] = {"model": name}
        rows.append(row)
        signal.alarm(options.seconds)
        try:
            model, inputs, kwargs = build()
        except (Exception, SystemExit) as error:
            totals["not built"] += 1
            row["error"] = f"not built: {first_line(error)}"[:160]
            continue
        finally:
            signal.alarm(0)
        start = time.perf_counter()
        signal.alarm(options.seconds)
        try:
            answer = check(model, *inputs, kwargs=kwargs, verify=options.measure)
        except (Exception, TooLong) as error:
            signal.alarm(0)
            totals["not checked" if isinstance(error, IsogonError) else "crashed"] += 1
            row["error"] = f"{type(error).__name__}: {first_line(error)}"[:300]
            print(f"{name}: {row['error']}", flush=True)
            continue
        finally:
            signal.alarm(0)
        verdicts = Counter(degree.verdict for degree in answer.alone.values())
        row |= {"seconds": round(time.perf_counter() - start, 2), **verdicts}
        row["disagreements"] = [str(entry) for entry in answer.disagreements]
        totals["models"] += 1
        totals["wrong"] += len(answer.disagreements)
        totals.update(verdicts)
        for degree in answer.alone.values():
            if degree.is_unknown:
                text = cause(degree.reason)
                causes[text] += 1
                models_of_cause[text].add(name)
        print(f"{name}: {dict(verdicts)}, {row['seconds']} s {'; '.join(row['disagreements'])[:300]}", flush=True)
    weights = sum(totals[verdict] for verdict in ("invariant", "not invariant", "unknown"))
    print(f"\n{processor()}, Python {platform.python_version()}, torch {torch.__version__}")
    print(dict(totals), f"unknown: {100 * totals['unknown'] / max(weights, 1):.2f} %")
    for text, count in causes.most_common(25):
        examples = sorted(models_of_cause[text])
        print(f"{count:6} weights, {len(examples):3} models: {text}  e.g. {examples[:3]}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
