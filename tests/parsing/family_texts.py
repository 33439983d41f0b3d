"""How each family writes what the rules are about."""

from dataclasses import dataclass

B = "\uff5c"
DS_OPEN, DS_CLOSE = f"<{B}tool▁calls▁begin{B}>", f"<{B}tool▁calls▁end{B}>"
DS_CALL, DS_SEP, DS_END = f"<{B}tool▁call▁begin{B}>", f"<{B}tool▁sep{B}>", f"<{B}tool▁call▁end{B}>"
K_OPEN, K_CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
K_CALL, K_ARGS, K_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
CHANNEL, MESSAGE, CALL = "<|channel|>", "<|message|>", "<|call|>"
TO = f"{CHANNEL}commentary to=functions."


def deepseek(*calls):
    return DS_OPEN + "".join(f"{DS_CALL}{call}{DS_END}" for call in calls) + DS_CLOSE


def kimi(*calls):
    return K_OPEN + "".join(f"{K_CALL}{call}{K_END}" for call in calls) + K_CLOSE


def xml(body):
    return f"<tool_call>\n{body}\n</tool_call>"


@dataclass(frozen=True)
class Texts:
    """One family's texts; `add` is a tool that takes the integers a and b, `say` one that takes the text t."""

    add: str  # add(a=1, b=2)
    two: str  # look() and say(t="1.10") in one turn, as the family writes several calls
    none: tuple[str, ...]  # look without arguments
    broken: tuple[str, ...]  # each one attempt at a call of add that cannot run
    open_: tuple[str, ...]  # attempts whose end is missing
    others: tuple[str, ...] = ()  # further ways of writing add(a=1, b=2)
    text_around: bool = True
    marks_its_end: bool = True
    mention: str = ""  # speaks of the tag and calls nothing
    think: tuple[str, str] = ("<think>", "</think>")


HERMES = Texts(
    add=xml('{"name": "add", "arguments": {"a": 1, "b": 2}}'),
    two=xml('{"name": "look"}') + "\n" + xml('{"name": "say", "arguments": {"t": "1.10"}}'),
    none=(
        xml('{"name": "look"}'),
        xml('{"name": "look", "arguments": null}'),
        xml('{"name": "look", "arguments": ""}'),
    ),
    broken=(
        xml('{"name": "add", "arguments": {"a": 1}'),
        xml('{"name": "add", "arguments": {"a": 1,}}'),
        xml('{"name": "add", "arguments": [1, 2]}'),
        xml('{"name": "add", "arguments": "{\\"a\\": "}'),
        xml('{"name": 5, "arguments": {}}'),
        xml('{"name": "add", "arguments": {"a": NaN}}'),
        xml('{"name": "add", "parameters": {"a": 1}}'),
        xml('{"name": "a"} {"name": "b"}'),
    ),
    open_=('<tool_call>\n{"name": "add", "arguments": {"a": 1}}', '<tool_call>\n{"name": "add", "argu'),
    mention="write `<tool_call>` first",
)
QWEN3_CODER = Texts(
    add=xml("<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>"),
    two=xml("<function=look>\n</function>\n<function=say>\n<parameter=t>\n1.10\n</parameter>\n</function>"),
    none=(xml("<function=look>\n</function>"), xml("<function=look></function>")),
    broken=(
        xml("<function=add>\n<parameter=a>\n1\n</function>"),
        xml("<function=add>\n<parameter=a>1<parameter=b>2</parameter></function>"),
        xml("<function=add>\n<parameter=a>\n1\n</parameter>"),
        xml("<function=add>\n1, 2\n</function>"),
        xml("<function=add>\n<parameter=a>1</parameter><parameter=a>2</parameter>\n</function>"),
        xml("<function=>\n<parameter=a>1</parameter>\n</function>"),
        xml('{"name": "add", "arguments": {"a": 1, "b": 2}}'),
        "<function=add>\n<parameter=a>\n1\n</parameter>\n</function>",
    ),
    open_=(
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>",
        "<tool_call>\n<function=add>\n<parameter=a>\n1",
    ),
    others=(xml("<function=add><parameter=a>1</parameter><parameter=b>2</parameter></function>"),),
    mention="write `<tool_call>` and `<function=` first",
)
GLM = Texts(
    add="<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n"
    "<arg_value>2</arg_value>\n</tool_call>",
    two="<tool_call>look\n</tool_call>\n<tool_call>say\n<arg_key>t</arg_key>\n<arg_value>1.10</arg_value>\n</tool_call>",
    none=("<tool_call>look\n</tool_call>", "<tool_call>look</tool_call>"),
    broken=(
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1\n</tool_call>",
        "<tool_call>add\n<arg_key>a\n<arg_value>1</arg_value>\n</tool_call>",
        "<tool_call>add\n<arg_key>a</arg_key>\n</tool_call>",
        "<tool_call>add\n<arg_value>1</arg_value>\n</tool_call>",
        "<tool_call>add\n<arg_key>a</arg_key><arg_value>1<arg_key>b</arg_key><arg_value>2</arg_value></tool_call>",
        "<tool_call>\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        xml('{"name": "add", "arguments": {"a": 1}}'),
        "<tool_call>add\n{'a': 1}\n</tool_call>",
    ),
    open_=("<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n", "<tool_call>add\n<arg_key>a</arg"),
    others=(
        (
            "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key><arg_value>2</arg_value>"
            "</tool_call>"
        ),
    ),
    mention="write `<tool_call>` first",
)
LLAMA3 = Texts(
    add='{"name": "add", "parameters": {"a": 1, "b": 2}}',
    two='{"name": "look", "parameters": {}}; {"name": "say", "parameters": {"t": "1.10"}}',
    none=(
        '{"name": "look"}',
        '{"name": "look", "parameters": {}}',
        '<|python_tag|>{"name": "look", "parameters": null}',
    ),
    broken=(
        '{"name": "add", "parameters": {"a": 1}',
        '{"name": "add", "parameters": {"a": 1,}}',
        "{'name': 'add', 'parameters': {'a': 1}}",
        '{"name": "add", "parameters": [1, 2]}',
        '{"name": 5, "parameters": {}}',
        '{"name": "add", "parameters": {"a": 1}, "arguments": {"a": 2}}',
        '{"name": "add", "args": {"a": 1}}',
        "<|python_tag|>add.call(a=1, b=2)",
        '{"name": "add", "parameters": {"a": 1, "b": 2}} and then?',
    ),
    open_=('{"name": "add", "parameters": {"a": 1}', '<|python_tag|>{"name": "add", "par'),
    others=(
        '<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": 2}}',
        '{"type": "function", "name": "add", "parameters": {"a": 1, "b": 2}}',
        '{"name": "add", "arguments": {"a": 1, "b": 2}}',
    ),
    text_around=False,
    marks_its_end=False,
    mention='Tools are called with {"name": "add", "parameters": {"a": 1}} and so on.',
)
MISTRAL = Texts(
    add='[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}}]',
    two='[TOOL_CALLS] [{"name": "look"}, {"name": "say", "arguments": {"t": "1.10"}}]',
    none=('[TOOL_CALLS] [{"name": "look"}]', "[TOOL_CALLS]look[ARGS]{}", "[TOOL_CALLS]look"),
    broken=(
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}]',
        '[TOOL_CALLS] [{"name": "add", "arguments": [1]}]',
        '[TOOL_CALLS] [{"name": "add", "parameters": {"a": 1}}]',
        "[TOOL_CALLS] []",
        "[TOOL_CALLS]",
        '[TOOL_CALLS]add[ARGS]{"a": 1,}',
        "[TOOL_CALLS]add[ARGS][1, 2]",
        "[TOOL_CALLS]add[ARGS]a=1",
        "[TOOL_CALLS]add[ARGS]",
    ),
    open_=('[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}', '[TOOL_CALLS]add[ARGS]{"a": 1'),
    others=(
        '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}',
        '[TOOL_CALLS]add{"a": 1, "b": 2}',
        '[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{"a": 1, "b": 2}',
    ),
    marks_its_end=False,
    mention="write `[TOOL_CALLS]` first",
    think=("[THINK]", "[/THINK]"),
)
DEEPSEEK = Texts(
    add=deepseek(f'function{DS_SEP}add\n```json\n{{"a": 1, "b": 2}}\n```'),
    two=deepseek(f"function{DS_SEP}look\n```json\n{{}}\n```", f'function{DS_SEP}say\n```json\n{{"t": "1.10"}}\n```'),
    none=(
        deepseek(f"function{DS_SEP}look\n```json\n{{}}\n```"),
        deepseek(f"look{DS_SEP}"),
        deepseek(f"function{DS_SEP}look"),
    ),
    broken=(
        deepseek(f'function{DS_SEP}add\n```json\n{{"a": 1,}}\n```'),
        deepseek(f"function{DS_SEP}add\n```json\n[1, 2]\n```"),
        deepseek(f"function{DS_SEP}add\n```json\na=1\n```"),
        deepseek(f'function{DS_SEP}\n```json\n{{"a": 1}}\n```'),
        deepseek('add {"a": 1}'),
        deepseek(f'add{DS_SEP}{{"a": 1}} {{"b": 2}}'),
        deepseek(),
        f'{DS_CALL}add{DS_SEP}{{"a": 1, "b": 2}}{DS_END}',
    ),
    open_=(
        f'{DS_OPEN}{DS_CALL}add{DS_SEP}{{"a": 1, "b": 2}}',
        f'{DS_OPEN}{DS_CALL}add{DS_SEP}{{"a": 1, "b": 2}}{DS_END}',
        f'{DS_OPEN}{DS_CALL}add{DS_SEP}{{"a": ',
    ),
    others=(deepseek(f'add{DS_SEP}{{"a": 1, "b": 2}}'), deepseek(f'\nfunction{DS_SEP}add\n{{"a": 1, "b": 2}}\n')),
)
KIMI = Texts(
    add=kimi(f'functions.add:0{K_ARGS}{{"a": 1, "b": 2}}'),
    two=kimi(f"functions.look:0{K_ARGS}{{}}", f'functions.say:1{K_ARGS}{{"t": "1.10"}}'),
    none=(kimi(f"functions.look:0{K_ARGS}{{}}"), kimi(f"functions.look:0{K_ARGS}"), kimi(f"look{K_ARGS}{{}}")),
    broken=(
        kimi(f'functions.add:0{K_ARGS}{{"a": 1,}}'),
        kimi(f"functions.add:0{K_ARGS}[1, 2]"),
        kimi(f"functions.add:0{K_ARGS}a=1"),
        kimi('functions.add:0{"a": 1}'),
        kimi(f'{K_ARGS}{{"a": 1}}'),
        kimi(f'functions.add:0{K_ARGS}{{"a": 1}}{{"b": 2}}'),
        kimi(),
        f'{K_CALL}functions.add:0{K_ARGS}{{"a": 1, "b": 2}}{K_END}',
    ),
    open_=(
        f'{K_OPEN}{K_CALL}functions.add:0{K_ARGS}{{"a": 1, "b": 2}}',
        f'{K_OPEN}{K_CALL}functions.add:0{K_ARGS}{{"a": 1, "b": 2}}{K_END}',
        f"{K_OPEN}{K_CALL}functions.add:0",
    ),
    others=(kimi(f'\nadd{K_ARGS} {{"a": 1, "b": 2}}\n'),),
)
HARMONY = Texts(
    add=f'{TO}add <|constrain|>json{MESSAGE}{{"a": 1, "b": 2}}{CALL}',
    two=f"{TO}look <|constrain|>json{MESSAGE}{{}}{CALL}<|start|>assistant{TO}say <|constrain|>json{MESSAGE}"
    f'{{"t": "1.10"}}{CALL}',
    none=(f"{TO}look <|constrain|>json{MESSAGE}{{}}{CALL}", f"{TO}look{MESSAGE}{CALL}"),
    broken=(
        f'{TO}add <|constrain|>json{MESSAGE}{{"a": 1,}}{CALL}',
        f"{TO}add <|constrain|>json{MESSAGE}[1, 2]{CALL}",
        f"{TO}add <|constrain|>json{MESSAGE}a=1{CALL}",
        f'{TO}add <|constrain|>json{MESSAGE}{{"a": 1}}<|end|>',
        f'{TO}add <|constrain|>json{MESSAGE}{{"a": 1}} {{"b": 2}}{CALL}',
        f'{CHANNEL}commentary to=browser.add{MESSAGE}{{"a": 1}}{CALL}',
        f'{CHANNEL}analysis to=functions.add{MESSAGE}{{"a": 1, "b": 2}}{CALL}',
        f'{TO}{MESSAGE}{{"a": 1}}{CALL}',
    ),
    open_=(
        f'{TO}add <|constrain|>json{MESSAGE}{{"a": 1, "b": 2}}',
        f'{TO}add <|constrain|>json{MESSAGE}{{"a"',
        f"{TO}add",
    ),
    others=(
        f' to=functions.add{CHANNEL}commentary json{MESSAGE}{{"a": 1, "b": 2}}{CALL}',
        f'<|start|>assistant{TO}add{MESSAGE}{{"a": 1, "b": 2}}{CALL}',
        f'{CHANNEL}analysis{MESSAGE}hm<|end|><|start|>assistant{TO}add json{MESSAGE}{{"a": 1, "b": 2}}{CALL}',
    ),
    text_around=False,
    think=(f"{CHANNEL}analysis{MESSAGE}", "<|end|>"),
)
GEMMA = Texts(
    add="<|tool_call>call:add{a:1,b:2}<tool_call|>",
    two='<|tool_call>call:look{}<tool_call|><|tool_call>call:say{t:<|"|>1.10<|"|>}<tool_call|>',
    none=("<|tool_call>call:look{}<tool_call|>", "<|tool_call>call:look<tool_call|>"),
    broken=(
        "<|tool_call>call:add{a:1,b:2<tool_call|>",
        "<|tool_call>call:add{a:1,}<tool_call|>",
        "<|tool_call>call:add{a:one}<tool_call|>",
        '<|tool_call>call:add{a:<|"|>one}<tool_call|>',
        "<|tool_call>call:add{1,2}<tool_call|>",
        "<|tool_call>call:add{a:1,a:2}<tool_call|>",
        "<|tool_call>call:{a:1}<tool_call|>",
        '<|tool_call>{"name": "add"}<tool_call|>',
        "<|tool_call>call:add{a:NaN}<tool_call|>",
    ),
    open_=("<|tool_call>call:add{a:1,b:2}", "<|tool_call>call:add{a:", "<|tool_call>call:add"),
    others=(
        "<start_function_call>call:add{a:1,b:2}<end_function_call>",
        "<|tool_call>call:add{ a: 1, b: 2 }<tool_call|>",
    ),
    mention="write `<|tool_call>` first",
    think=("<|channel>thought\n", "<channel|>"),
)
REACT = Texts(
    add='Action: add\nAction Input: {"a": 1, "b": 2}',
    two='Action: look\nAction Input: {}\nAction: say\nAction Input: {"t": "1.10"}',
    none=("Action: look\nAction Input: {}", "Action: look\nAction Input:", "Action: look"),
    broken=(
        'Action: add\nAction Input: {"a": 1',
        "Action: add\nAction Input: [1, 2]",
        "Action: add\nAction Input: one and two",
        'Action: add\nAction Input: {"a": 1} {"b": 2}',
        "Action: add[1, 2]",
        'Action: add the two\nAction Input: {"a": 1, "b": 2}',
    ),
    open_=('Action: add\nAction Input: {"a": ',),
    others=(
        'Thought: I add.\nAction: add\nAction Input: {"a": 1, "b": 2}\n',
        'Action: `add`\nAction Input:\n```json\n{"a": 1,\n"b": 2}\n```',
    ),
    text_around=False,
    marks_its_end=False,
    mention="Action: none of the tools fits here",
)

FAMILY_TEXTS = {
    "hermes": HERMES,
    "qwen3_coder": QWEN3_CODER,
    "glm": GLM,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "deepseek": DEEPSEEK,
    "kimi": KIMI,
    "harmony": HARMONY,
    "gemma": GEMMA,
    "react": REACT,
}


def function(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = (
    function("look"),
    function("say", t={"type": "string"}),
    function("add", a={"type": "integer"}, b={"type": "integer"}),
)
