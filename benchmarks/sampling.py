"""Sampling multi-turn episodes: our policy against transformers `generate` on the whole history each turn.

`python -m benchmarks.sampling [--groups 4] [--turns 5] [--threads 1]` prints new tokens per CPU-second of
both, and as its last line one JSON object. Both sides play the same episodes in lockstep: the same prompts
in groups of 8, the same answers of the environment, temperature 1, the same limit of tokens a turn.
"""

import argparse
import json
import random
import time
from collections.abc import Callable

import torch

from tiltyard.models.loading import LoadedModel, load_model
from tiltyard.policies.base import Sampling, TokenRequest
from tiltyard.policies.hf import HFPolicy

GROUP = 8
MAX_TOKENS = 8
RULES = """Boxes A, B, C, D and E: one of them hides a coin. Open one box each turn and never the same box twice.
Answer with the letter of the box and nothing else. Example:
Which box?
B
Box B is empty. Which box?
D
Box D holds the coin. You win.
"""

Answer = Callable[[list[list[int]], int], list[list[int]]]
"""From the histories of all episodes and the turn's number to the tokens that each was answered with."""


def end_token(loaded: LoadedModel) -> int:
    """The token that ends the model's turn."""
    return int(loaded.tokenizer.convert_tokens_to_ids("<|im_end|>"))  # pyright: ignore[reportArgumentType] - one token


def prompts(loaded: LoadedModel, groups: int) -> list[list[int]]:
    """One prompt of about 110 tokens for each episode, equal within a group."""
    made = []
    for group in range(groups):
        letters = "".join(random.Random(group).sample("FGHJKLMNPQRSTUVWXYZ", 5))
        text = f"{RULES}Now a new game. The boxes are {', '.join(letters)}. Which box?"
        messages = [{"role": "user", "content": text}]
        rendered = str(loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        made += [loaded.tokenizer(rendered).input_ids] * GROUP
    return made


def observations(loaded: LoadedModel, turns: int) -> list[list[int]]:
    """What the environment answers after each turn, about 25 tokens with the chat template around it."""
    said = [f"That box is empty, {turns - turn} turns left. Which box?" for turn in range(turns)]
    return [
        loaded.tokenizer(f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").input_ids for text in said
    ]


def play(answer: Answer, loaded: LoadedModel, groups: int, turns: int) -> tuple[list[list[int]], int]:
    """Play all episodes; returns their tokens and how many of them were sampled."""
    histories = [list(ids) for ids in prompts(loaded, groups)]
    sampled = 0
    end = end_token(loaded)
    for turn, observation in enumerate(observations(loaded, turns)):
        for history, ids in zip(histories, answer(histories, turn), strict=True):
            sampled += len(ids)
            history.extend(ids if ids[-1] == end else [*ids, end])
            history.extend(observation)
    return histories, sampled


def generate_answer(loaded: LoadedModel) -> Answer:
    """`generate` on the whole left-padded history, with nothing but temperature 1."""
    end = end_token(loaded)

    def answer(histories: list[list[int]], turn: int) -> list[list[int]]:
        width = max(map(len, histories))
        ids = torch.tensor([[end] * (width - len(row)) + row for row in histories])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in histories])
        out = loaded.model.generate(  # pyright: ignore[reportCallIssue] - typed as a tensor by nn.Module
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=MAX_TOKENS,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=end,
            pad_token_id=end,
        )
        rows = out[:, width:].tolist()
        return [row[: row.index(end) + 1] if end in row else row for row in rows]

    return answer


def policy_answer(policy: HFPolicy, logprobs: dict[tuple[int, int], float]) -> Answer:
    """Our policy; `logprobs` receives each sampled token's log-probability by episode and place."""

    def answer(histories: list[list[int]], turn: int) -> list[list[int]]:
        requests = [
            TokenRequest(str(index), list(row), MAX_TOKENS, 1000 * turn + index) for index, row in enumerate(histories)
        ]
        results = policy.sample(requests)
        for index, result in enumerate(results):
            for offset, value in enumerate(result.logprobs):
                logprobs[index, len(histories[index]) + offset] = value
        return [list(result.ids) for result in results]

    return answer


def largest_difference(
    loaded: LoadedModel, histories: list[list[int]], logprobs: dict[tuple[int, int], float]
) -> float:
    """The sampler's log-probabilities against one full forward pass over each whole episode."""
    worst = 0.0
    for index, history in enumerate(histories):
        with torch.inference_mode():
            full = loaded.model(torch.tensor([history]), use_cache=False).logits[0].log_softmax(-1)
        for (episode, place), value in logprobs.items():
            if episode == index:
                worst = max(worst, abs(float(full[place - 1, history[place]]) - value))
    return worst


def main() -> None:
    """Run both sides and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    loaded = load_model(options.model, device="cpu")
    policy = HFPolicy(loaded.model, stop_ids=frozenset({end_token(loaded)}), sampling=Sampling())
    logprobs: dict[tuple[int, int], float] = {}
    sides = {"generate": generate_answer(loaded), "ours": policy_answer(policy, logprobs)}
    rates, seconds, histories = {}, {}, {}
    for name, answer in sides.items():
        # A short warm-up, so that neither side pays for first calls.
        play(answer, loaded, 1, 1)
        policy.weights_changed()
        logprobs.clear()
        start = time.process_time()
        histories[name], sampled = play(answer, loaded, options.groups, options.turns)
        seconds[name] = time.process_time() - start
        rates[name] = sampled / seconds[name]
        print(f"{name:9} {sampled:5} new tokens in {seconds[name]:6.1f} CPU-s: {rates[name]:6.1f} tokens per CPU-s")
    print(f"path {policy.path!r}, warm-up included: {policy.stats}")
    result = {
        "ours_over_generate": round(rates["ours"] / rates["generate"], 2),
        "max_logprob_difference": largest_difference(loaded, histories["ours"], logprobs),
        "ours_tokens_per_cpu_s": round(rates["ours"], 1),
        "generate_tokens_per_cpu_s": round(rates["generate"], 1),
        "episodes": options.groups * GROUP,
        "turns": options.turns,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
