"""A server of Anthropic's API that says what a script tells it to.

    ANTHROPIC_API_KEY=KEY python anthropic_server.py --script FILE --log FILE [--port N]

It is `scripted.py` with what Anthropic's own server demands of a request (its key in `x-api-key`
and nowhere else, and a version), and with its own list of models. It has no other API.
"""

import os

import scripted

KEY = os.environ["ANTHROPIC_API_KEY"]
MODELS = ("claude-sonnet-5", "claude-haiku-5")
ROUTES = ("/v1/messages", "/v1/messages/count_tokens")


def error(kind, message):
    """A refusal in Anthropic's form."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_0"}


def models():
    """The list of models."""
    made = {"created_at": "2026-02-01T00:00:00Z"}
    cards = [{"type": "model", "id": name, "display_name": name} | made for name in MODELS]
    return {"data": cards, "first_id": MODELS[0], "has_more": False, "last_id": MODELS[-1]}


class Handler(scripted.Handler):
    """One connection."""

    def do_GET(self):
        """The list of models, and nothing else."""
        self._heard(b"")
        if self._refused():
            return
        if self.path.partition("?")[0] == "/v1/models":
            return self._document(models())
        return self._document(error("not_found_error", "Not found"), 404)

    def _answer(self, path, body, raw):
        if self._refused():
            return None
        if path not in ROUTES:
            return self._document(error("not_found_error", "Not found"), 404)
        return super()._answer(path, body, raw)

    def _refused(self):
        """Refuses a request that Anthropic's server would refuse for its head."""
        if "authorization" in self.headers:
            why = 401, error("authentication_error", "Invalid bearer token")
        elif self.headers.get("x-api-key") != KEY:
            why = 401, error("authentication_error", "invalid x-api-key")
        elif "anthropic-version" not in self.headers:
            message = "anthropic-version: header is required"
            why = 400, error("invalid_request_error", message)
        else:
            return False
        self._document(why[1], why[0])
        return True


if __name__ == "__main__":
    scripted.main(Handler, __doc__)
