"""For tests of whole runs: a model on disk that is small enough to train in a second, and manifests that name it."""

import json
from functools import partial
from pathlib import Path

import pytest
from openenv_servers import RealServers, scaffold

from tiltyard.build import train_manifest
from tiltyard.manifest import load_manifest, manifest_to_yaml
from tiltyard.manifest.resuming import resumed_manifest
from tiltyard.train.observer import SilentObserver
from tiltyard.train.run_folder import RunFolder

END_LOGIT = 5.0
"""The average logit of the end token: turns are a dozen bytes long and most of them end by themselves."""

LETTERS = '''
"""Twenty rows, two turns; each answer earns the share of its characters that are letters.

A file `stop` beside this one holds a number: so many answers later Ctrl-C is pressed, once.
"""

import os
import signal
from pathlib import Path

stop = Path(__file__).with_name("stop")


class Env:
    dataset_size = 20
    answers = 0

    def reset(self, seed=None, row_index=None, evaluation=None):
        self.turn = 0
        return f"{'held out' if evaluation else 'row'} {row_index}", {}

    def step(self, action):
        Env.answers += 1
        if stop.exists() and Env.answers >= int(stop.read_text()):
            stop.unlink()
            os.kill(os.getpid(), signal.SIGINT)
        self.turn += 1
        share = sum(c.isalpha() for c in action) / max(1, len(action))
        return "more", share, self.turn == 2, False, {"success": share > 0.5, "valid": share > 0}
'''


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """A random model that ends its turns, saved as any other model of transformers is."""
    import torch  # noqa: PLC0415 - tests that need no model do not wait for it

    from tiltyard.testing.model import tiny_model  # noqa: PLC0415 - as above
    from tiltyard.testing.tokenizer import byte_tokenizer  # noqa: PLC0415 - as above

    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_tokenizer()
    model = tiny_model(len(tokenizer), tied=False)
    with torch.no_grad():
        hidden = model.model(torch.arange(len(tokenizer))[None]).last_hidden_state[0].mean(0)
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        model.lm_head.weight[end] = END_LOGIT * hidden / hidden.square().sum()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def letters() -> str:
    """The source of the environment that manifests name when nothing else is said."""
    return LETTERS


@pytest.fixture(scope="session")
def manifest_in(model_folder):
    """Write an environment and a manifest that trains it into a folder; returns the manifest's path.

    Prompts wait for each other, so that which ones share a batch does not depend on the clock.
    """

    def write(folder: Path, env: str = LETTERS, **sections: str) -> Path:
        (folder / "env.py").write_text(env)
        texts = {
            "environment": "{env_type: rollout, entrypoint: 'env.py:Env', max_turns: 3}",
            "model": f"{{name: {model_folder}}}",
            "algorithm": "{group_size: 4}",
            "rollout": "{max_tokens_per_turn: 32, linger_s: 30}",
            "training": "{steps: 3, batch_size: 2, learning_rate: 1e-3, save_every: 2, eval: {tasks: 4}}",
            **sections,
        }
        path = folder / "m.yaml"
        path.write_text("".join(f"{name}: {text}\n" for name, text in texts.items()))
        return path

    return write


@pytest.fixture
def write_manifest(manifest_in, tmp_path):
    """As `manifest_in`, in the test's own folder."""
    return partial(manifest_in, tmp_path)


@pytest.fixture(scope="session")
def train():
    """Train as the command line does: from a manifest into a new folder, or on in the folder of a run."""

    def run(path: Path | None, out: Path, *overrides: str, resume: bool = False) -> dict:
        if resume:
            manifest = resumed_manifest(out, path, overrides)
            folder = RunFolder.resume(out, manifest_to_yaml(manifest))
        else:
            assert path is not None
            manifest = load_manifest(path, overrides)
            folder = RunFolder.create(out, manifest_to_yaml(manifest))
        return train_manifest(manifest, folder, SilentObserver())

    return run


@pytest.fixture(scope="session")
def scaffolds(tmp_path_factory) -> Path:
    """The folder in which `openenv init` wrote the package `echo_env`."""
    pytest.importorskip("openenv")
    return scaffold(tmp_path_factory.mktemp("scaffolds"))


@pytest.fixture(scope="session")
def real_servers(scaffolds):
    """Servers of the released `openenv`; a test that kills them starts its own."""
    servers = RealServers(scaffolds)
    yield servers
    servers.kill()


@pytest.fixture(scope="session")
def read_lines():
    """Read a file of JSON lines."""
    return lambda path: [json.loads(line) for line in path.read_text().splitlines()]
