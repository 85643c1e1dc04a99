"""An agent as a stand-alone program: a class of its own, urllib, and the variables that any OpenAI client reads.

It is started once for each problem, reads the problem from stdin, talks to the model and calls tools over HTTP, and
ends with status 0. `--style` shows other ways to work: `plan` keeps a second conversation, `ids` continues token ids,
`forgetful` rewrites what the model said. `--broken` makes it misbehave.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request


class Client:
    """The few requests that an agent needs."""

    def __init__(self):
        self.base = os.environ["OPENAI_BASE_URL"]
        self.key = os.environ["OPENAI_API_KEY"]
        self.model = os.environ["OPENAI_MODEL"]

    def post(self, path, body):
        request = urllib.request.Request(
            self.base + path,
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    def chat(self, messages, tools):
        body = {"model": self.model, "messages": messages, "tools": tools}
        return self.post("/chat/completions", body)["choices"][0]["message"]

    def tool(self, call):
        return self.post("/tools/call", {"name": call["name"], "arguments": call["arguments"]})


class LampAgent:
    def __init__(self, problem, style):
        self.problem, self.style, self.client = problem, style, Client()

    def solve(self):
        if self.style == "ids":
            return self.by_ids()
        if self.style == "plan":
            self.client.chat([{"role": "user", "content": f"Plan: {self.problem['text']}"}], [])
        messages = [{"role": "user", "content": self.problem["text"]}]
        while True:
            message = self.client.chat(messages, self.problem["tools"])
            calls = message.get("tool_calls")
            if not calls:
                return None  # it said something that is no call: nothing more to do
            if self.style == "forgetful":
                arguments = json.loads(calls[0]["function"]["arguments"])
                calls[0]["function"]["arguments"] = json.dumps({**arguments, "note": "shortened"})
                told = self.client.tool({"name": calls[0]["function"]["name"], "arguments": arguments})
            else:
                told = self.client.tool(calls[0]["function"])
            messages += [message, {"role": "tool", "tool_call_id": calls[0]["id"], "content": told["content"]}]
            if told["done"]:
                return None

    def by_ids(self):
        """Work on token ids: what was sampled is passed back as it was, new text is encoded once and appended."""
        first = self.client.post("/tokenize", {"messages": [{"role": "user", "content": self.problem["text"]}]})
        ids = first["ids"]
        while True:
            body = {"model": self.client.model, "prompt": ids}
            choice = self.client.post("/completions", body)["choices"][0]
            try:
                call = json.loads(choice["text"])
                told = self.client.tool({"name": call.pop("tool"), "arguments": call})
            except (ValueError, KeyError, AttributeError):
                return
            if told["done"]:
                return
            more = self.client.post("/tokenize", {"text": told["content"]})["ids"]
            ids = ids + choice["token_ids"] + more


def misbehave(how, problem):
    if how == "crash":
        sys.exit("I do not feel well")
    if how == "hang":
        time.sleep(600)
    if how == "text":
        Client().post("/completions", {"model": "policy", "prompt": problem["text"]})
    if how == "endless":
        while True:
            Client().chat([{"role": "user", "content": problem["text"]}], [])
    if how == "look":
        print(sorted(os.environ))
        sys.exit(3)


def option(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""


def main():
    problem = json.load(sys.stdin)
    try:
        misbehave(option("--broken"), problem)
        LampAgent(problem, option("--style")).solve()
    except urllib.error.HTTPError as e:
        sys.exit(f"{e.code}: {e.read().decode()}")


if __name__ == "__main__":
    main()
