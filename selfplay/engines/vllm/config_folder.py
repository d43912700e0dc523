"""The folder from which vLLM reads a model's shape."""

import copy
from hashlib import sha256
from pathlib import Path

from transformers import PreTrainedModel

from selfplay.models import model_cache
from selfplay.run.directory import cache_folder


def config_folder(model: PreTrainedModel) -> Path:
    """Return a folder of the user's cache with a model's config; it has no weights.

    Models of one shape have one folder: its path is a part of the key under which vLLM keeps what
    it has compiled for a GPU. In a new folder for each engine, every start would compile again.
    Raises RunError if the disk refuses.
    """
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config._name_or_path = ""
    name = sha256(config.to_json_string().encode()).hexdigest()[:16]
    return model_cache.made_once(cache_folder() / "vllm" / name, config.save_pretrained)
