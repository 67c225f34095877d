"""An agent on LangGraph (`pip install langgraph langchain-openai`) for `kind: command`."""

import json
import sys

from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


def tool(spec: dict) -> StructuredTool:
    def respond(**arguments) -> str:
        return spec["response"]

    return StructuredTool.from_function(respond, name=spec["name"], description=spec["description"], args_schema=spec["parameters"])


scenario = json.load(sys.stdin)
tools = [*map(tool, scenario["tools"])]
model = ChatOpenAI(model=scenario["model"], **scenario["sampling"]).bind_tools(tools)
graph = StateGraph(MessagesState)
graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode(tools))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
result = graph.compile().invoke({"messages": scenario["messages"]}, {"recursion_limit": 25})
print(result["messages"][-1].content)
