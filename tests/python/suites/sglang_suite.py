"""SGLang's kits for tests of a server, against rolltape's engine."""

import sys
import time
import unittest

import openai
import requests

import standins
from engine import SOURCES, Engine

standins.install()
sys.path.insert(0, str(SOURCES / "sglang"))

from sglang.test.kits.abort_timeout_kit import AbortAllMixin  # noqa: E402
from sglang.test.kits.anthropic_messages_kit import AnthropicMessagesMixin  # noqa: E402
from sglang.test.kits.basic_api_contract_kit import BasicAPIContractMixin  # noqa: E402
from sglang.test.kits.basic_decode_correctness_kit import BasicDecodeCorrectnessMixin  # noqa: E402
from sglang.test.kits.ebnf_constrained_kit import EBNFConstrainedMixin  # noqa: E402
from sglang.test.kits.json_constrained_kit import JSONConstrainedMixin  # noqa: E402
from sglang.test.kits.json_mode_kit import JSONModeMixin  # noqa: E402
from sglang.test.kits.matched_stop_kit import MatchedStopMixin  # noqa: E402
from sglang.test.kits.pause_generation_kit import PauseResumeInPlaceMixin  # noqa: E402
from sglang.test.kits.regex_constrained_kit import RegexConstrainedMixin  # noqa: E402

MODEL = "tiny"
ARRIVAL_SECONDS = 20


class Served(unittest.TestCase):
    """What the kits expect of the class that they are mixed into."""

    model = served_model_name = MODEL
    api_key = "unused"

    @classmethod
    def setUpClass(cls):
        cls.engine = Engine(MODEL, ["--max-model-len", "16384", "--seed", "1"])
        cls.process = cls.engine.processes[0]
        cls.base_url = f"http://127.0.0.1:{cls.engine.port}"
        cls.client = openai.Client(api_key=cls.api_key, base_url=cls.base_url + "/v1")

    @classmethod
    def tearDownClass(cls):
        cls.engine.stop()


class TestContract(BasicAPIContractMixin, Served):
    served_model_name = MODEL


class TestDecode(BasicDecodeCorrectnessMixin, Served):
    pass


class TestJson(JSONConstrainedMixin, Served):
    pass


class TestJsonMode(JSONModeMixin, Served):
    pass


class TestRegex(RegexConstrainedMixin, Served):
    pass


class TestEbnf(EBNFConstrainedMixin, Served):
    pass


class TestStops(MatchedStopMixin, Served):
    pass


class TestMessages(AnthropicMessagesMixin, Served):
    pass


class TestAbort(AbortAllMixin, Served):
    @property
    def abort_all_sleep(self):
        """No time once all calls have arrived, which the kit leaves some seconds for."""
        end = time.monotonic() + ARRIVAL_SECONDS
        while time.monotonic() < end:
            load = requests.get(self.base_url + "/load", timeout=10).json()
            if load["server_load"] == self.abort_all_num_requests:
                break
            time.sleep(0.01)
        return 0


class TestPause(PauseResumeInPlaceMixin, Served):
    pause_max_new_tokens = 4096
