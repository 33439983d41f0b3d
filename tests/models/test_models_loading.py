"""Models by name: a GGUF file converted once, a folder, and what cannot be loaded."""

import threading

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiltyard.errors import ConfigurationError
from tiltyard.models import smollm2
from tiltyard.models.loading import load_model, load_tokenizer
from tiltyard.testing.model import tiny_model

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def byte_letters():
    """The printable stand-ins of the 256 bytes in byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + index) for index in range(len(rest))]


def write_gguf(path, model, *, architecture="llama", pre="smollm"):
    """Write a Llama as llama.cpp's converter does: rotary halves of each head interleaved."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), architecture)
    tokens = [*SPECIAL, *byte_letters(), "12", "\u0120a"]
    tokens += [f"<unused{index}>" for index in range(config.vocab_size - len(tokens))]
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(["1 2", "\u0120 a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, value in model.state_dict().items():
        if name != "lm_head.weight":
            writer.add_tensor(*named(name, value.numpy(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def named(name, weights, config):
    if not name.startswith("model.layers."):
        outer = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
        return outer[name], weights
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(GGUF_NAMES[part])
    if heads:
        rows, columns = weights.shape
        weights = weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight", weights


@pytest.fixture
def gguf_file(tmp_path):
    path = tmp_path / "Tiny.gguf"
    write_gguf(path, tiny_model())
    return path


def test_a_gguf_file_loads_as_the_model_it_was_made_from(gguf_file, tmp_path):
    """Weights, rotary layout and the tied head come through: the logits are equal."""
    loaded = load_model(str(gguf_file), device="cpu", cache_dir=tmp_path / "cache")
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(IDS).logits, tiny_model()(IDS).logits, atol=1e-5, rtol=1e-5)
    assert loaded.model.get_input_embeddings().weight is loaded.model.get_output_embeddings().weight
    assert not loaded.model.training


def test_a_ggufs_tokenizer_keeps_digits_apart_and_knows_its_special_tokens(gguf_file, tmp_path):
    """Merges apply to letters but not over digits; special tokens and the chat template are there."""
    tokenizer = load_tokenizer(str(gguf_file), cache_dir=tmp_path / "cache")
    assert tokenizer.tokenize("12 a<|im_end|>") == ["1", "2", "\u0120a", "<|im_end|>"]
    assert tokenizer.decode(tokenizer("h\u00e9 <|im_start|>12").input_ids) == "h\u00e9 <|im_start|>12"
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False) == (
        "<|im_start|>user\na<|im_end|>\n"
    )


def test_a_gguf_without_digit_splitting_merges_over_digits(tmp_path):
    """What splits text is read from the file, not assumed."""
    path = tmp_path / "plain.gguf"
    write_gguf(path, tiny_model(), pre="gpt-2")
    assert load_tokenizer(str(path), cache_dir=tmp_path / "cache").tokenize("12") == ["12"]


def test_a_gguf_is_converted_once_and_by_content(gguf_file, tmp_path):
    """The second load reads the cache; other content under the same name does not."""
    cache = tmp_path / "cache"
    first = smollm2.converted(gguf_file, cache)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert smollm2.converted(gguf_file, cache) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    write_gguf(gguf_file, tiny_model(seed=1))
    assert smollm2.converted(gguf_file, cache) != first


def test_two_conversions_at_once_leave_one_whole_model(gguf_file, tmp_path):
    """Whoever is second takes what the first made, and no scratch folder stays."""
    cache, made, gate = tmp_path / "cache", [], threading.Barrier(2)

    def convert():
        gate.wait()
        made.append(smollm2.converted(gguf_file, cache))

    threads = [threading.Thread(target=convert) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made[0] == made[1]
    assert list(cache.iterdir()) == [made[0]]
    assert AutoModelForCausalLM.from_pretrained(made[0]).config.num_hidden_layers == 2


def test_the_cache_is_in_the_users_cache_folder(monkeypatch, tmp_path):
    """`XDG_CACHE_HOME` decides where it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert smollm2.default_cache_dir() == tmp_path / "tiltyard"


def test_a_local_folder_loads_in_the_dtype_asked_for(gguf_file, tmp_path):
    """A transformers folder is a name too."""
    folder = smollm2.converted(gguf_file, tmp_path / "cache")
    loaded = load_model(str(folder), dtype="bfloat16", device="cpu")
    assert (loaded.model.dtype, loaded.name) == (torch.bfloat16, str(folder))


@pytest.mark.parametrize("pre", ["llama-bpe", "default"])
def test_an_unknown_tokenizer_in_a_gguf_is_an_error(tmp_path, pre):
    """Text is never split by a rule that is not the file's own."""
    path = tmp_path / "other.gguf"
    write_gguf(path, tiny_model(), pre=pre)
    with pytest.raises(ConfigurationError, match=pre):
        load_tokenizer(str(path), cache_dir=tmp_path / "cache")


def test_a_gguf_of_another_family_is_an_error(tmp_path):
    """The message names the family."""
    path = tmp_path / "other.gguf"
    write_gguf(path, tiny_model(), architecture="qwen2")
    with pytest.raises(ConfigurationError, match="qwen2"):
        load_model(str(path), device="cpu", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "fp32"}, "float32"),
        ({"device": "gpu"}, "gpu"),
        ({"name": "missing.gguf"}, "does not exist"),
    ],
)
def test_impossible_options_say_what_is_possible(options, message):
    """Checked before anything is loaded."""
    with pytest.raises(ConfigurationError, match=message):
        load_model(**{"name": "smollm2-135m-instruct", **options})


def test_a_folder_without_a_model_is_an_error(tmp_path):
    """The message names what is missing."""
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        load_model(str(tmp_path), device="cpu")


def test_a_folder_with_an_adapter_alone_says_how_to_make_a_model_of_it(tmp_path):
    """What `tiltyard export` writes of a run with `train: lora`, without `--merge`."""
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"is an adapter, .* `tiltyard export --merge`"):
        load_model(str(tmp_path))


def test_a_file_that_is_no_gguf_is_an_error(tmp_path):
    """A broken download is named, not parsed."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"<html>not found</html>" * 20)
    with pytest.raises(ConfigurationError, match="cannot be read as a GGUF"):
        load_model(str(path), device="cpu", cache_dir=tmp_path / "cache")


def test_an_unknown_name_lists_what_is_possible():
    """A typo is answered with the names that would work."""
    with pytest.raises(ConfigurationError, match="smollm2-135m-instruct"):
        load_model("./no-such-model", device="cpu")


@pytest.mark.slow
def test_smollm2_is_what_the_stock_reader_makes_of_the_same_file(tmp_path):
    """Logits, ids and rendered conversations equal those of `from_pretrained(gguf_file=...)`."""
    source = smollm2.gguf_path()
    ours = load_model(smollm2.NAME, device="cpu")
    texts = [
        "What is the capital of France? 1234.",
        "def f(x):\n    return x**2  # caf\u00e9",
        "<|im_start|>user\nHi<|im_end|>",
    ]
    stock_tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    assert [ours.tokenizer(text).input_ids for text in texts] == [stock_tokenizer(text).input_ids for text in texts]
    messages = [{"role": "user", "content": texts[0]}]
    assert ours.tokenizer.apply_chat_template(messages, tokenize=False) == stock_tokenizer.apply_chat_template(
        messages, tokenize=False
    )
    stock = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    for text in texts:
        ids = torch.tensor([ours.tokenizer(text).input_ids])
        with torch.no_grad():
            torch.testing.assert_close(ours.model(ids).logits, stock(ids).logits, atol=1e-3, rtol=1e-3)
