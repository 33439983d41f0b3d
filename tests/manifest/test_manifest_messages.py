"""What a user reads when a manifest is wrong: whole messages, word for word."""

from pathlib import Path

import pytest

from tiltyard.errors import ManifestError
from tiltyard.manifest import load_manifest, manifest_from_text

FINE = "environment: {env_type: rollout, entrypoint: 'package:Env'}\nmodel: {name: smollm2-135m-instruct}\n"

GOLDEN = {
    "an empty file": (
        "",
        "m.yaml: the file is empty; a manifest has the sections environment, model, algorithm, rollout, training",
    ),
    "a list": (
        "- environment\n- model\n",
        (
            "m.yaml: a manifest is a mapping with the sections environment, model, algorithm, rollout, training; "
            "this file holds list data"
        ),
    ),
    "another generation's file": (
        "INIT_HP: {LR: 1}\nMUTATION_PARAMS: {}\n",
        (
            "m.yaml: not a manifest of this version: it has INIT_HP, MUTATION_PARAMS, and none of the sections "
            "environment, model, algorithm, rollout, training"
        ),
    ),
    "broken YAML": (
        "environment: {env_type: rollout\nmodel: x\n",
        "m.yaml: line 2, column 6: not valid YAML: expected ',' or '}', but got ':'",
    ),
    "workers where there are none": (
        FINE + "rollout: {workers: 2, ray_address: auto}\n",
        (
            "m.yaml: 2 problems\n"
            "  rollout.workers: only with rollout.backend: process or ray, got local\n"
            "  rollout.ray_address: only with rollout.backend: ray, got local"
        ),
    ),
    "workers beside a server": (
        "environment: {env_type: rollout, env_url: 'ws://h', max_turns: 2}\nmodel: {name: m}\nrollout: {backend: ray}",
        "m.yaml: rollout.backend: must be local with env_url: the sessions live on that server already",
    ),
    "a typo": (
        FINE + "training: {learnin_rate: 1.0e-5}\n",
        "m.yaml: training.learnin_rate: unknown key; did you mean training.learning_rate?",
    ),
    "a dash for an underscore": (
        FINE + "training: {batch-size: 4}\n",
        "m.yaml: training.batch-size: unknown key; did you mean training.batch_size?",
    ),
    "keys in the wrong section": (
        FINE + "learning_rate: 1e-5\ntraining: {max-turns: 4}\n",
        (
            "m.yaml: 2 problems\n"
            "  learning_rate: does not belong here; it is training.learning_rate\n"
            "  training.max-turns: does not belong here; it is environment.max_turns"
        ),
    ),
    "another project's names": (
        FINE + "algorithm: {beta: 0.1, num_generations: 8}\n",
        (
            "m.yaml: 2 problems\n"
            "  algorithm.beta: unknown key; it is called algorithm.kl_coef here\n"
            "  algorithm.num_generations: unknown key; it is called algorithm.group_size here"
        ),
    ),
    "retired values": (
        FINE.replace("rollout", "multiturn") + "algorithm: {action_granularity: token}\n",
        (
            "m.yaml: 2 problems\n"
            "  environment.env_type: 'multiturn' is retired; write env_type: rollout\n"
            "  algorithm.advantage_granularity: 'token' is a granularity of LLMPPO and LLMREINFORCE; a baseline that "
            "is the group's has no value of single tokens; write turn, or auto"
        ),
    ),
    "packages that are more than names": (
        FINE.replace(
            "'package:Env'",
            "'package:Env', env_packages: {uv: ['-r x', 'a b', 'x @ https://h/x.whl', './x', 'gem-llm[all]>=1'], "
            "conda: [x]}",
        ),
        "m.yaml: environment.env_packages.conda: must be one of 'uv', 'pip', got 'conda'",
    ),
    "options, paths and URLs of packages": (
        FINE.replace(
            "'package:Env'",
            "'package:Env', env_packages: {uv: ['-r x', 'x @ https://h/x.whl', './x', 'gem-llm[all]>=1'], pip: []}",
        ),
        (
            "m.yaml: 5 problems\n"
            "  environment.env_packages: has uv and pip, which are the same here: both are installed with uv; keep "
            "one\n"
            "  environment.env_packages.uv[0]: takes names of packages, not options, got '-r x'\n"
            "  environment.env_packages.uv[1]: takes names of packages, not URLs; install it yourself and leave the "
            "key out, got 'x @ https://h/x.whl'\n"
            "  environment.env_packages.uv[2]: is no name of a package; write a name, or a name with a version such as "
            "gem-llm==1.0.0, got './x'\n"
            "  environment.env_packages.pip: names no package; leave the key out"
        ),
    ),
    "packages of a server": (
        (
            "environment: {env_type: rollout, env_url: 'http://host', max_turns: 1, env_packages: {pip: [x]}}\n"
            "model: {name: m}\n"
        ),
        "m.yaml: environment.env_packages: only with entrypoint, not with env_url",
    ),
    "rows, and nothing that scores the answers": (
        "environment: {env_type: rollout, dataset: owner/quiz, response_column: chosen}\nmodel: {name: m}\n",
        (
            "m.yaml: 2 problems\n"
            "  environment.rubric_file_path: is required with dataset: the file that scores the answers\n"
            "  environment.response_column: only with env_type: dataset, not with dataset and a rubric_file_path"
        ),
    ),
    "rows that are not there": (
        "environment: {env_type: rollout, name: data/trian.parquet, reward_file_path: reward.py}\nmodel: {name: m}\n",
        (
            "m.yaml: 2 problems\n"
            "  environment.name: there is no file or folder /nowhere/data/trian.parquet (given as "
            "'data/trian.parquet')\n"
            "  environment.reward_file_path: there is no /nowhere/reward.py (given as 'reward.py', relative to "
            "/nowhere)"
        ),
    ),
    "a prompt that is none": (
        (
            "environment: {env_type: dataset, objective: sft, dataset: owner/quiz, "
            "prompt_template: {user: '{q}', user_1: '{a b}', user_2: '{q'}}\nmodel: {name: m}\n"
        ),
        (
            "m.yaml: 3 problems\n"
            "  environment.prompt_template.user: 'user' is no message of a prompt_template; its keys are a role and a "
            "place, such as system_0, user_1, assistant_2\n"
            "  environment.prompt_template.user_1: {a b} in '{a b}' is no column's name; a brace of the text itself is "
            "written twice\n"
            "  environment.prompt_template.user_2: expected '}' before end of string in '{q'; a brace of the text "
            "itself is written twice"
        ),
    ),
    "keys of what is played, where answers are given": (
        (
            "environment: {env_type: dataset, dataset: owner/quiz, entrypoint: 'package:Env', max_turns: 2, "
            "max_reward: 1, rubric_name: score, mcp_tool: play}\nmodel: {name: m}\n"
        ),
        (
            "m.yaml: 6 problems\n"
            "  environment.objective: is required with env_type: dataset and not given (sft or preference)\n"
            "  environment.entrypoint: only with env_type: rollout; the rows of env_type: dataset are given\n"
            "  environment.rubric_name: only with dataset and a rubric_file_path, not with env_type: dataset\n"
            "  environment.mcp_tool: only with env_url, not with env_type: dataset\n"
            "  environment.max_turns: only with dataset and a rubric_file_path or entrypoint or env_url, not with "
            "env_type: dataset\n"
            "  environment.max_reward: only with dataset and a rubric_file_path or entrypoint or env_url, not with "
            "env_type: dataset"
        ),
    ),
    "the answers' column, where there are pairs": (
        (
            "environment: {env_type: dataset, dataset: owner/quiz, objective: preference, response_column: answer}\n"
            "model: {name: m}\n"
        ),
        "m.yaml: environment.response_column: only with objective: sft; preference has chosen and rejected",
    ),
    "retired kinds of environments": (
        FINE.replace("rollout", "sft"),
        "m.yaml: environment.env_type: 'sft' is retired; write env_type: dataset with objective: sft",
    ),
    "required keys left out": (
        "environment: {entrypoint: }\nmodel:\n",
        ("m.yaml: 2 problems\n  environment.env_type: is required and not given\n  model: is required and not given"),
    ),
    "wrong types": (
        (
            "environment: {env_type: rollout, entrypoint: 'package:Env', max_turns: '3'}\nmodel: {name: 5}\n"
            "training: {steps: 3.0, batch_size: true, eval: {before: 1, tasks: 2.5}}\n"
        ),
        (
            "m.yaml: 6 problems\n"
            "  environment.max_turns: must be a whole number, got the text '3'\n"
            "  model.name: must be text, got 5\n"
            "  training.steps: must be a whole number, got 3.0\n"
            "  training.batch_size: must be a whole number, got true\n"
            "  training.eval.tasks: must be a whole number, got 2.5\n"
            "  training.eval.before: must be true or false, got 1"
        ),
    ),
    "values out of range": (
        FINE + "algorithm: {group_size: 1, clip_low: 1.5}\nrollout: {top_p: 0, temperature: .nan}\n",
        (
            "m.yaml: 4 problems\n"
            "  algorithm.group_size: must be >= 2, got 1\n"
            "  algorithm.clip_low: must be <= 1, got 1.5\n"
            "  rollout.temperature: must be a finite number, got nan\n"
            "  rollout.top_p: must be > 0, got 0"
        ),
    ),
    "a value that is not on the list": (
        FINE + "training: {truncated: drop}\nalgorithm: {name: PPO}\n",
        (
            "m.yaml: 2 problems\n"
            "  algorithm.name: must be one of 'GRPO', 'GSPO', 'CISPO', 'LLMPPO', 'LLMREINFORCE', 'SFT', "
            "'DPO', got 'PPO'\n"
            "  training.truncated: must be one of 'keep', 'zero', 'mask', got 'drop'"
        ),
    ),
    "scalars that YAML's versions read differently": (
        (
            "environment:\n  env_type: rollout\n  entrypoint: package:Env\n"
            "  env_config: {flag: on, zip: 017, at: 12:30:45}\n"
            "model: {name: no}\n"
        ),
        (
            "m.yaml: 4 problems\n"
            "  environment.env_config.flag: line 4: plain on reads differently in YAML 1.1 and 1.2; write true, or "
            '"on" in quotes for the text\n'
            "  environment.env_config.zip: line 4: plain 017 reads differently in YAML 1.1 and 1.2; write 17, or "
            '"017" in quotes for the text\n'
            "  environment.env_config.at: line 4: plain 12:30:45 reads differently in YAML 1.1 and 1.2; write "
            '"12:30:45" in quotes for the text, or the number without _ and :\n'
            "  model.name: line 5: plain no reads differently in YAML 1.1 and 1.2; write false, or "
            '"no" in quotes for the text'
        ),
    ),
    "a key twice": (
        FINE + "training:\n  steps: 3\n  steps: 4\n",
        "m.yaml: training.steps: line 5: the key is there twice, first on line 4; keep one",
    ),
    "files that are not there": (
        "environment: {env_type: rollout, entrypoint: 'envs/box.py:Box'}\nmodel: {name: ./weights}\n",
        (
            "m.yaml: 2 problems\n"
            "  environment.entrypoint: there is no /nowhere/envs/box.py (given as 'envs/box.py', "
            "relative to /nowhere)\n"
            "  model.name: there is no /nowhere/weights (given as './weights', relative to /nowhere)"
        ),
    ),
    "an entrypoint that is none": (
        FINE.replace("package:Env", "https://example.org/env"),
        (
            "m.yaml: environment.entrypoint: must be module:attr or path.py:attr, got a URL; write env_url: "
            "https://example.org/env"
        ),
    ),
    "no environment": (
        "environment: {env_type: rollout, entrypoint: }\nmodel: {name: m}\n",
        "m.yaml: environment.entrypoint: is required and not given, unless env_url or dataset is",
    ),
    "two environments": (
        FINE.replace("entrypoint:", "max_turns: 2, env_url: 'http://host', entrypoint:"),
        "m.yaml: environment: has an entrypoint and an env_url; keep one",
    ),
    "a server, and what only the environment of an entrypoint has": (
        "environment: {env_type: rollout, env_url: 'ftp://host', env_config: {size: 3}}\nmodel: {name: m}\n",
        (
            "m.yaml: 3 problems\n"
            "  environment.max_turns: is required with env_url: a server is not asked for it\n"
            "  environment.env_url: base_url must begin with http://, https://, ws:// or wss:// and name a host, got "
            "'ftp://host'\n"
            "  environment.env_config: only with entrypoint, not with env_url"
        ),
    ),
    "an entrypoint, and what only a server has": (
        FINE.replace("'package:Env'", "'package:Env', mcp_tool: submit, action_field: code"),
        (
            "m.yaml: 2 problems\n"
            "  environment.mcp_tool: only with env_url, not with entrypoint\n"
            "  environment.action_field: only with env_url, not with entrypoint"
        ),
    ),
    "keys of another algorithm": (
        FINE + "algorithm: {name: GSPO, gae_lambda: 1, discount: 0.9, Clip_Low: 1, gamma: 1}\n",
        (
            "m.yaml: 4 problems\n"
            "  algorithm.gae_lambda: is a key of LLMPPO, and this is GSPO\n"
            "  algorithm.discount: is a key of LLMPPO and LLMREINFORCE, and this is GSPO\n"
            "  algorithm.Clip_Low: unknown key; did you mean algorithm.clip_low?\n"
            "  algorithm.gamma: unknown key; it is called algorithm.discount here"
        ),
    ),
    "values of another algorithm": (
        FINE + "algorithm: {name: LLMPPO, advantage_granularity: trajectory, group_size: 0}\n",
        (
            "m.yaml: 2 problems\n"
            "  algorithm.group_size: must be >= 1, got 0\n"
            "  algorithm.advantage_granularity: 'trajectory' is a granularity of GRPO, GSPO and CISPO; a return is "
            "that of an action; write turn, token, or auto"
        ),
    ),
    "an algorithm that is no section": (
        FINE + "algorithm: GSPO\n",
        (
            "m.yaml: algorithm: must hold keys (name and those of one algorithm: GRPO, GSPO, CISPO, LLMPPO, "
            "LLMREINFORCE, SFT, DPO), got 'GSPO'"
        ),
    ),
    "an algorithm's name that is none": (
        FINE + "algorithm: {name: [GRPO]}\n",
        (
            "m.yaml: algorithm.name: must be one of 'GRPO', 'GSPO', 'CISPO', 'LLMPPO', 'LLMREINFORCE', 'SFT', "
            "'DPO', got ['GRPO']"
        ),
    ),
    "settings that do not go together": (
        FINE + "algorithm: {constant_length: 5}\n",
        "m.yaml: algorithm: constant_length is only for loss_normaliser 'constant', got 5 with 'token'",
    ),
    "settings of another way to train": (
        FINE.replace("instruct}", "instruct, train: 'last:8', lora: {rank: 4}}"),
        "m.yaml: model.lora: only with model.train: lora, got train: last:8",
    ),
}


@pytest.mark.parametrize(("text", "message"), GOLDEN.values(), ids=GOLDEN.keys())
def test_a_broken_manifest_says_everything_that_is_wrong(text, message):
    """One message lists every problem by its dotted path: what was wrong, what was given, what to do."""
    with pytest.raises(ManifestError) as raised:
        manifest_from_text(text, source="m.yaml", base=Path("/nowhere"))
    assert str(raised.value) == message


def test_a_missing_file_is_named_with_its_whole_path(tmp_path):
    """The path that was looked for is said, not the one that was typed."""
    with pytest.raises(ManifestError, match="there is no manifest") as raised:
        load_manifest(tmp_path / "absent.yaml")
    assert str(tmp_path / "absent.yaml") in str(raised.value)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    """A folder is not read for a file in it."""
    with pytest.raises(ManifestError, match="is a folder; give the manifest in it"):
        load_manifest(tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    """Bytes that are not UTF-8 are named by their place."""
    (tmp_path / "m.yaml").write_bytes(b"environment: \xff")
    with pytest.raises(ManifestError, match=r"not UTF-8 text .* at byte 13"):
        load_manifest(tmp_path / "m.yaml")


def test_an_override_is_checked_like_the_file():
    """`--set` reaches the same checks, and says what it is when it is not one."""
    with pytest.raises(ManifestError) as raised:
        manifest_from_text(FINE, source="m.yaml", base=Path("/"), overrides=["steps", "training.stps=3"])
    assert str(raised.value) == (
        "m.yaml: 2 problems\n"
        "  an override is section.key=value, got 'steps'\n"
        "  training.stps: unknown key; did you mean training.steps?"
    )


def test_a_character_that_yaml_does_not_have_is_named_by_its_line(tmp_path):
    """A NUL in a text file is no YAML."""
    (tmp_path / "m.yaml").write_text("model: {}\nenvironment: a\0b\n")
    with pytest.raises(ManifestError, match=r"line 2: not valid YAML: it holds the character U\+0000"):
        load_manifest(tmp_path / "m.yaml")


def test_a_path_through_a_file_cannot_be_read(tmp_path):
    """The system's own word for it, without a traceback."""
    (tmp_path / "m.yaml").write_text("")
    with pytest.raises(ManifestError, match=r"m\.yaml/x cannot be read: Not a directory"):
        load_manifest(tmp_path / "m.yaml" / "x")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("environment.turns", "unknown key; did you mean environment.max_turns or algorithm.turns?"),
        ("environment.timeout", "unknown key; did you mean environment.request_timeout_s?"),
        ("environment.reward_fn", "unknown key; did you mean environment.reward_fn_name?"),
        ("environment.nmae", "unknown key; did you mean environment.name?"),
        ("algorithm.action_granulartiy", "unknown key; did you mean algorithm.action_granularity?"),
        ("training.eval_tasks", "unknown key; did you mean training.eval.tasks?"),
        ("training.lora_rank", "unknown key; did you mean model.lora.rank?"),
        ("eval", "does not belong here; it is training.eval"),
        ("rollout.lora", "does not belong here; it is model.lora"),
    ],
)
def test_an_unknown_key_names_the_nearest_by_its_words_and_its_section(key, message):
    """Other spellings count, a part of a name does, and so does a path that is written as one word."""
    with pytest.raises(ManifestError) as raised:
        manifest_from_text(FINE, source="m.yaml", base=Path("/"), overrides=[f"{key}={{}}"])
    assert str(raised.value) == f"m.yaml: {key}: {message}"


def test_what_the_template_is_given_in_any_case_is_refused_by_its_key():
    """It would be an error of the tokenizer that says nothing of the manifest."""
    given = "environment.chat_template_kwargs={tokenize: true, tools: [], enable_thinking: false}"
    rest = (
        "is not for a manifest to say: it follows from the conversation; here is what a template has of its own, such "
        "as enable_thinking"
    )
    with pytest.raises(ManifestError) as raised:
        manifest_from_text(FINE, source="m.yaml", base=Path("/"), overrides=[given])
    assert str(raised.value).splitlines()[1:] == [
        f"  environment.chat_template_kwargs.{name}: {rest}" for name in ("tokenize", "tools")
    ]
