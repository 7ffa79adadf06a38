"""Models in GGUF files, which are converted into ordinary folders of safetensors, once for each content.

transformers reads and dequantises such a file in half a minute, and again for each config, tokenizer and worker.
"""

from __future__ import annotations

import io
import tempfile
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from closelook.hub import hub_reachable
from closelook.lrp_core.opening.checkpoint import CONFIG
from closelook.lrp_core.records.types import UserError, did_you_mean
from closelook.terminal import complain
from closelook.weights import GGUF_SOURCE, hash_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SUFFIX = ".gguf"
_PACKAGES = ("gguf", "sentencepiece")


def folder_of(model: str, revision: str | None = None) -> str:
    """The folder of a model in a GGUF file, converted if it is not yet; any other `model` unchanged.

    `model` is the file, a folder whose only model it is, or the file's place on the hub, such as OWNER/NAME/FILE.gguf.
    Raises UserError for a file that does not exist or cannot be read, and the hub's errors.
    """
    file = _file_of(model, revision)
    if file is None:
        return model
    from huggingface_hub import constants
    from transformers import __version__

    digest = hash_file(file)
    folder = Path(constants.HF_HOME) / "closelook" / "gguf" / f"{digest}-{__version__}"
    if not folder.is_dir():
        _convert(file, digest, folder)
    return str(folder)


def _file_of(model: str, revision: str | None) -> Path | None:
    """The GGUF file of a model, downloaded if it is on the hub; None for a model of another format."""
    path = Path(model).expanduser()
    if path.is_dir():
        files = [] if (path / CONFIG).is_file() else sorted(path.glob(f"*{_SUFFIX}"))
        if len(files) > 1:
            raise UserError(f"{model} holds {len(files)} GGUF files: give one of them, such as {files[0]}")
        return files[0] if files else None
    if path.suffix != _SUFFIX:
        return None
    if path.is_file():
        return path
    owner, _, name = str(path.parent).partition("/")
    if path.is_absolute() or model.startswith(".") or not name or path.parent.is_dir():
        neighbours = [neighbour.name for neighbour in path.parent.glob(f"*{_SUFFIX}")]
        raise UserError(f"there is no file {path}{did_you_mean(path.name, neighbours)}: give a GGUF file")
    from huggingface_hub import hf_hub_download

    name, *inside = name.split("/")
    file = "/".join([*inside, path.name])
    return Path(hf_hub_download(f"{owner}/{name}", file, revision=revision, local_files_only=not hub_reachable()))


def _convert(file: Path, digest: str, folder: Path) -> None:
    """Write the model and tokenizer of a GGUF file into `folder`, all at once."""
    if not all(map(find_spec, _PACKAGES)):
        raise UserError(f"{file.name} needs the packages {' and '.join(_PACKAGES)}: pip install 'closelook[gguf]'")
    from transformers import AutoTokenizer, __version__

    complain(f"converting {file.name} into safetensors in {folder}, once")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch, "model")
        try:
            with redirect_stderr(io.StringIO()):  # progress bars, which are drawn even where nobody looks
                model = _read(file)
                tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        except UserError:
            raise
        except Exception as error:  # readers of damaged files raise what their arithmetic raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            advice = f"download it again or, if it is newer than transformers {__version__}, give it as safetensors"
            raise UserError(f"{file} cannot be read ({reason}): {advice}") from error
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        (made / GGUF_SOURCE).write_text(digest, encoding="ascii")
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # which another process has made meanwhile
                raise


def _read(file: Path) -> PreTrainedModel:
    """The model of a GGUF file in float32. Raises UserError for one that transformers does not read whole."""
    import torch
    import transformers
    from gguf import GGUFReader
    from transformers import AutoConfig, GgufConfig

    from closelook.lrp_core.opening.loading import check_weights, without_report

    reader = GGUFReader(file)
    scaled = [name for name in reader.fields if ".rope.scaling." in name]
    if scaled:
        raise UserError(
            f"{file} scales its rotary positions ({scaled[0]}), which transformers does not read from GGUF: give the "
            "model as safetensors"
        )
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    head = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
    with without_report():
        model, report = getattr(transformers, head).from_pretrained(
            file.parent,
            config=config,
            gguf_file=file.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
        )
    check_weights(str(file), type(model).__name__, config, report, brought=())
    stored = sum(int(tensor.n_elements) for tensor in reader.tensors)
    loaded = sum(weight.numel() for weight in model.parameters())
    if stored != loaded:  # transformers leaves out tensors that its model has no place for
        raise UserError(
            f"{file} holds {stored:,} numbers, of which transformers reads {loaded:,}: give the model as safetensors"
        )
    return model
