"""A model behind any OpenAI-compatible server answers with a tool: `python examples/weather_api.py URL MODEL`."""

import sys

from tiltyard import APIMultiTurnRollout, OpenAI, ToolManager, tool

WEATHER = {"Oslo": "rain, 4 C", "Delhi": "haze, 29 C", "Quito": "storm, 14 C"}


@tool
def weather(city: str) -> str:
    """Say what the weather in a city is now.

    Args:
        city: The name of the city, such as "Oslo".
    """
    return WEATHER.get(city, f"there is no station in {city!r}")


def says_it(trajectory: dict) -> float:
    return float(WEATHER[trajectory["city"]] in trajectory["messages"][-1]["content"])


api = OpenAI(model=sys.argv[2], base_url=sys.argv[1])  # the key is that of OPENAI_API_KEY
rollout = APIMultiTurnRollout(api, ToolManager([weather]), {"temperature": 0}, reward_fns=says_it)
questions = {city: {"role": "user", "content": f"What is the weather in {city}?"} for city in WEATHER}
for result in rollout([{"city": city, "messages": [question]} for city, question in questions.items()]):
    for message in result["messages"]:
        print(f"{message['role']:>9}: {message['content'] or message.get('tool_calls')}")
    print(f"   reward: {result['reward']}, ended with {result['stop_reason']!r}\n")
