"""Text to ids, with the tokens of the template's structure kept apart from text that only looks like them."""

import copy
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiltyard._boundary import shown
from tiltyard.errors import TemplateError
from tiltyard.tools.text import clean

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HIDE_OPEN, HIDE_CLOSE = "\ue000", "\ue001"
_HIDDEN = re.compile(f"{HIDE_OPEN}(\\d+){HIDE_CLOSE}")


class Encoder:
    """Encodes text whose parts an environment wrote, and decodes what was sampled.

    `hide` goes over every text that did not come from the chat template itself: it replaces each spelling of
    a special token by a placeholder that survives the template. `encode` turns the template's own special
    tokens into their ids and what was hidden into ordinary text, so that no observation can forge a turn.
    Nothing is added at either end: a BOS is there when the template wrote it.

    Only tokens that the tokenizer declares special are kept apart. Ordinary added tokens (such as Qwen's
    `<tool_call>`) are vocabulary, and stay what the tokenizer makes of them.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Take what is needed of a tokenizer, and leave its settings alone.

        Raises:
            TemplateError: It is none of transformers.
        """
        if not hasattr(tokenizer, "added_tokens_decoder"):
            raise TemplateError(
                f"the tokenizer must be one of transformers, got {shown(tokenizer)}; load it with "
                "AutoTokenizer.from_pretrained(...)"
            )
        added = {index: token for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        ids = {token.content: index for index, token in added.items()}
        for token, index in zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True):
            ids.setdefault(token, index)
        self.special_ids: Mapping[str, int] = ids
        """Every special token's text and id."""
        self._tokenizer = tokenizer
        spellings = sorted(ids, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, spellings)) or r"(?!)")
        self._to_hide = re.compile("|".join(map(re.escape, [*spellings, HIDE_OPEN, HIDE_CLOSE])))
        self._spellings = [*spellings, HIDE_OPEN, HIDE_CLOSE]
        self._number = {text: number for number, text in enumerate(self._spellings)}
        if tokenizer.is_fast:
            self._stock, self._literal, self._decode = _fast(tokenizer)
        else:
            self._stock, self._literal, self._decode = _slow(tokenizer)
        self._added_before: list[int] | None = None

    def hide(self, text: str) -> str:
        """Replace the spellings of special tokens in a text that is not structure."""
        return self._to_hide.sub(lambda match: f"{HIDE_OPEN}{self._number[match[0]]}{HIDE_CLOSE}", text)

    def hide_in(self, value: Any) -> Any:
        """The same for every string of a JSON value, keys included."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide_in(key): self.hide_in(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_in(item) for item in value]
        return value

    def show(self, text: str) -> str:
        """Undo `hide`."""
        return _HIDDEN.sub(lambda match: self._spellings[int(match[1])], text)

    def encode(self, text: str) -> list[int]:
        """Encode template output: special tokens as themselves, what was hidden as ordinary text."""
        if HIDE_OPEN not in text:
            return self._stock(text)
        ids: list[int] = []
        done = 0
        for start, end in self._between_specials(text):
            if HIDE_OPEN in text[start:end]:
                ids += self._stock(text[done:start]) + self._literal(self.show(text[start:end]))
                done = end
        return ids + self._stock(text[done:])

    def first_special(self, text: str) -> re.Match[str] | None:
        """The first special token in template output, by its text."""
        return self._special.search(text)

    def specials_in(self, text: str) -> Iterator[re.Match[str]]:
        """Every special token in template output, by its text."""
        return self._special.finditer(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids as they are: special tokens kept, spaces not cleaned up."""
        return self._decode(list(ids))

    def encode_prompt(self, text: str) -> list[int]:
        """Encode a raw prompt that a completion follows.

        What the tokenizer puts before a text (BOS) comes first, once, also when the text spells it; what the
        tokenizer puts after one (EOS) does not. Encode the completion apart, with `encode`: a token can
        merge across the seam, so `len(encode_prompt(prompt))` is no position in the ids of the joined text.
        """
        ids = self._stock(text)
        if self._added_before is None:
            bare, whole = self._stock("x"), list(self._tokenizer.encode("x"))
            self._added_before = whole[: next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)]
        count = len(self._added_before)
        return ids if ids[:count] == self._added_before else self._added_before + ids

    def _between_specials(self, text: str) -> list[tuple[int, int]]:
        cuts = [0, *(edge for match in self._special.finditer(text) for edge in match.span()), len(text)]
        return list(zip(cuts[::2], cuts[1::2], strict=True))


_Encode = Callable[[str], list[int]]
_Decode = Callable[[list[int]], str]


def _fast(tokenizer: Any) -> tuple[_Encode, _Encode, _Decode]:
    # Copies of our own: padding, truncation and `encode_special_tokens` are settings of the shared object, which
    # other threads and other users of the tokenizer change between two calls.
    stock, literal = copy.deepcopy(tokenizer.backend_tokenizer), copy.deepcopy(tokenizer.backend_tokenizer)
    for backend in (stock, literal):
        backend.no_padding()
        backend.no_truncation()
    stock.encode_special_tokens, literal.encode_special_tokens = False, True
    return (
        lambda text: stock.encode(clean(text), add_special_tokens=False).ids,
        lambda text: literal.encode(clean(text), add_special_tokens=False).ids,
        lambda ids: stock.decode(ids, skip_special_tokens=False),
    )


def _slow(tokenizer: Any) -> tuple[_Encode, _Encode, _Decode]:
    lock = threading.Lock()  # a tokenizer written in Python promises nothing about threads

    def encode(text: str, *, literal: bool) -> list[int]:
        with lock:
            return list(tokenizer.encode(clean(text), add_special_tokens=False, split_special_tokens=literal))

    def decode(ids: list[int]) -> str:
        with lock:
            return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    return lambda text: encode(text, literal=False), lambda text: encode(text, literal=True), decode
