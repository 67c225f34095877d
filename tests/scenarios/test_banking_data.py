"""The shipped banking suite: tools, labels and entries are as its README describes, and the original's file can replace the data."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fastjsonschema
import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.suites.folder import load_suite

FOLDER = Path(__file__).parents[2] / "scenarios" / "banking"
ENTRIES: list[Json] = json.loads((FOLDER / "banking.json").read_text(encoding="utf-8"))
TOOLS: list[Json] = json.loads((FOLDER / "tools.json").read_text(encoding="utf-8"))
PERSONAS: list[Json] = json.loads((FOLDER / "personas.json").read_text(encoding="utf-8"))
SCHEMAS = {tool["title"]: tool for tool in TOOLS}

#: The tools of the agent leaderboard's banking domain.
NAMES = [
    "get_account_balance",
    "get_transaction_history",
    "transfer_funds",
    "get_loan_information",
    "get_credit_card_information",
    "get_mortgage_details",
    "get_savings_account_products",
    "schedule_appointment",
    "check_loan_application_status",
    "find_nearby_locations",
    "get_investment_products",
    "report_lost_stolen_card",
    "update_contact_information",
    "setup_automatic_bill_pay",
    "initiate_transaction_dispute",
    "get_exchange_rates",
    "calculate_loan_payment",
    "manage_account_alerts",
    "check_wire_transfer_status",
    "get_cd_products",
]

#: The keys of an entry in the original's file, except `available_tools`, which is in tools.json here.
ENTRY_KEYS = ["id", "question", "ground_truth", "metadata", "user_goals", "expected_tool_calls"]
METADATA_KEYS = ["benchmark", "domain", "persona_index", "persona_name", "num_goals"]

entry_by_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])


def test_tools_have_the_names_of_the_original() -> None:
    """The twenty tools have the names and the keys of the original data set."""
    assert sorted(NAMES) == sorted(SCHEMAS)
    assert [["title", "description", "type", "properties", "required", "response_schema"]] * 20 == [list(tool) for tool in TOOLS]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool["title"])
def test_schemas_are_json_schemas(tool: Json) -> None:
    """Parameters and response are JSON schemas that describe every field. Required fields are among the fields."""
    for schema in (tool, tool["response_schema"]):
        fastjsonschema.compile(schema)

        assert "object" == schema["type"]
        assert schema["properties"]
        assert set(schema["required"]) <= set(schema["properties"])
        assert all(field["type"] and field["description"] for field in schema["properties"].values())


def test_ids_number_the_hundred_entries() -> None:
    """Ids are banking-000 to banking-099, so they are unique and give the position of an entry."""
    assert [f"banking-{number:03d}" for number in range(100)] == [entry["id"] for entry in ENTRIES]


@entry_by_entry
def test_entry_has_the_keys_of_the_original(entry: Json) -> None:
    """An entry has the original's keys in the same order, and its metadata says that its labels were made by hand."""
    assert ENTRY_KEYS == list(entry)
    assert [*METADATA_KEYS, "label_source"] == list(entry["metadata"])
    assert ("banking", "hand") == (entry["metadata"]["domain"], entry["metadata"]["label_source"])
    assert PERSONAS[entry["metadata"]["persona_index"]]["name"] == entry["metadata"]["persona_name"]
    assert all(list(call) == ["tool", "parameters", "goal"] for call in entry["expected_tool_calls"])


@entry_by_entry
def test_expected_calls_fit_the_tools(entry: Json) -> None:
    """Every expected tool exists. Its parameters are in the schema, have the right type and are complete, and no call is repeated."""
    for call in entry["expected_tool_calls"]:
        tool = SCHEMAS[call["tool"]]
        arguments = {"type": "object", "properties": tool["properties"], "required": tool["required"], "additionalProperties": False}

        fastjsonschema.validate(arguments, call["parameters"])

    calls = [json.dumps([call["tool"], call["parameters"]], sort_keys=True) for call in entry["expected_tool_calls"]]
    assert len(set(calls)) == len(calls)


@entry_by_entry
def test_calls_serve_the_goals(entry: Json) -> None:
    """There are four to eight goals, each call serves one of them, and ground_truth and num_goals repeat them."""
    goals = entry["user_goals"]

    assert 4 <= len(goals) <= 8
    assert entry["expected_tool_calls"]
    assert {call["goal"] for call in entry["expected_tool_calls"]} <= set(goals)
    assert "\n- ".join(["User goals:", *goals]) == entry["ground_truth"]
    assert len(goals) == entry["metadata"]["num_goals"]


@entry_by_entry
def test_question_is_one_line(entry: Json) -> None:
    """A question is one line of text, as in the original."""
    assert entry["question"].strip() == entry["question"]
    assert [entry["question"]] == entry["question"].splitlines()


def test_every_tool_is_expected_often_enough() -> None:
    """Every tool is expected by at least five scenarios."""
    times = Counter(tool for entry in ENTRIES for tool in {call["tool"] for call in entry["expected_tool_calls"]})

    assert {} == {name: times[name] for name in NAMES if times[name] < 5}


def test_no_sentence_is_used_twice() -> None:
    """No sentence of a question, no goal and no persona occurs twice, because none was made from a template."""
    questions = (sentence for entry in ENTRIES for sentence in sentences(entry["question"]))
    goals = (goal.lower().rstrip(".") for entry in ENTRIES for goal in entry["user_goals"])
    names = (persona["name"] for persona in PERSONAS)

    assert [[], [], []] == [[text for text, count in Counter(texts).items() if count > 1] for texts in (questions, goals, names)]


def test_no_text_names_a_tool() -> None:
    """No question and no goal contains a tool's name in words, with or without its verb, because that would reveal the label."""
    phrases = [phrase for name in NAMES for phrase in in_words(name)]
    texts = [(entry["id"], plain(text)) for entry in ENTRIES for text in [entry["question"], *entry["user_goals"]]]

    assert [] == [(id, phrase) for id, text in texts for phrase in phrases if phrase in text]


def test_original_file_drops_in(tmp_path: Path) -> None:
    """Entries that contain their tools, with schemas as JSON text, load with the same suite.yaml as equal scenarios."""
    folder = shutil.copytree(FOLDER, tmp_path / "banking")
    tools = [{**tool, **{name: json.dumps(tool[name]) for name in ("properties", "response_schema")}} for tool in TOOLS]
    original = [{**entry, "available_tools": tools} for entry in ENTRIES]

    (folder / "banking.json").write_text(json.dumps(original), encoding="utf-8")

    assert load_suite(FOLDER / "suite.yaml").scenarios == load_suite(folder / "suite.yaml").scenarios


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences of a text, as far as their ends can be recognised. Sentences of one or two words are left out."""
    for sentence in re.split(r"(?<=[.!?])\s+", text):
        if len(sentence.split()) > 2:
            yield sentence.lower().rstrip(".!? ")


def in_words(name: str) -> Iterator[str]:
    """Yields a tool's name in words, with and without the verb. For `get_cd_products`: "get cd products" and "cd products"."""
    verb, _, rest = name.partition("_")
    yield f"{verb} {rest}".replace("_", " ")
    if "_" in rest:
        yield rest.replace("_", " ")


def plain(text: str) -> str:
    """Returns a text as lower-case words with single spaces."""
    return " ".join(re.findall(r"[a-z]+", text.lower()))
