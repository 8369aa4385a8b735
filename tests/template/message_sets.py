"""Conversations that every chat template is rendered with: system, user, assistant, tool and thinking turns.
SPDX-License-Identifier: MIT
"""

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a \"city\" <now> & later.",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "The city"},
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
            "days": {"type": "integer", "minimum": 1}, "opts": {"type": "object", "properties": {
                "deep": {"type": "array", "items": {"type": ["string", "null"]}}}, "required": ["deep"]}},
            "required": ["city"]}, "return": {"type": "string"}}},
    {"type": "function", "function": {"name": "stop", "description": "",
                                      "parameters": {"type": "object", "properties": {}}}},
]


def call(args, id="call_1abcde", name="get_weather"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": args}}


ARGS = {"city": "Zürich \u2603", "days": 3, "opts": {"deep": ["a", None, True, 1.5]}, "flag": False}
U = {"role": "user", "content": "Hi"}
A = {"role": "assistant", "content": "Hello!"}
S = {"role": "system", "content": "  You are terse.\n"}
TOOL_TURN = [{"role": "user", "content": "Weather?"},
             {"role": "assistant", "content": "", "tool_calls": [call(ARGS)]},
             {"role": "tool", "tool_call_id": "call_1abcde", "name": "get_weather", "content": "{\"t\": 21.5}"}]
MESSAGES = {
    "user": [U],
    "system": [S, U],
    "turns": [S, U, A, {"role": "user", "content": "More?\nLines  \n"}],
    "assistant_last": [U, A],
    "empty": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
    "think": [U, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}, U],
    "reasoning": [U, {"role": "assistant", "content": "yes", "reasoning_content": "Let me see.\n"}, U],
    "thinking_key": [U, {"role": "assistant", "content": "yes", "thinking": "Hm.", "reasoning_content": "Hm."}, U],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Look:"}, {"type": "text", "text": " here"}]}],
    "image": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}],
    "system_parts": [{"role": "system", "content": [{"type": "text", "text": "Sys"}]},
                     {"role": "user", "content": [{"type": "text", "text": "Hi"}]}, A, U],
    "tool": TOOL_TURN,
    "tool_more": TOOL_TURN + [{"role": "assistant", "content": "21.5 degrees"}, {"role": "user", "content": "Thanks"}],
    "tool_null": [S, U, {"role": "assistant", "content": None, "tool_calls": [call({}, name="stop")]},
                  {"role": "tool", "tool_call_id": "call_1abcde", "content": "ok"}],
    "tool_two": [U, {"role": "assistant", "content": "Two:", "tool_calls": [call(ARGS), call({"city": "B"}, "call_2abcd")]},
                 {"role": "tool", "tool_call_id": "call_1abcde", "name": "get_weather", "content": "1"},
                 {"role": "tool", "tool_call_id": "call_2abcd", "name": "get_weather", "content": "2"}],
    "tool_think": [U, {"role": "assistant", "content": "", "reasoning_content": "call it", "tool_calls": [call(ARGS)]},
                   {"role": "tool", "tool_call_id": "call_1abcde", "content": "x"}, A, U],
    "tool_text_args": [U, {"role": "assistant", "content": "", "tool_calls": [call("{\"city\": \"Bern\"}")]},
                       {"role": "tool", "tool_call_id": "call_1abcde", "content": "x"}],
    "null": [U, {"role": "assistant", "content": None}, U],
    "no_content": [U, {"role": "assistant"}, U],
    "developer": [{"role": "developer", "content": "Dev."}, U],
    "odd_role": [U, {"role": "observer", "content": "?"}],
    "twice": [U, U],
    "late_system": [U, S],
    "none": [],
    "unicode": [{"role": "user", "content": "naïve ß Ǆ ΑΣ 😀 \u200b\u2028 'q' \"d\" <|im_end|> \\n \t"}],
}
VARIANTS = {
    "plain": {},
    "gen": {"add_generation_prompt": True},
    "tools": {"add_generation_prompt": True, "tools": TOOLS},
    "think": {"add_generation_prompt": True, "enable_thinking": True, "thinking": True, "tools": TOOLS},
    "no_think": {"add_generation_prompt": True, "enable_thinking": False, "thinking": False},
    "effort": {"add_generation_prompt": True, "reasoning_effort": "high", "builtin_tools": ["browser", "python"],
               "tools": TOOLS, "documents": [{"title": "T", "text": "Doc text"}], "date_string": "01 Jan 2025",
               "model_identity": "You are X.", "controls": {"length": "short"}, "available_tools": TOOLS},
}


def variables():
    """(name, variables) for every set with every variant."""
    for mname, messages in MESSAGES.items():
        for vname, extra in VARIANTS.items():
            v = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": False,
                 "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
            v.update(extra)
            yield mname + "/" + vname, v
