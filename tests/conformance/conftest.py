"""What the suite of transformers must be told about classes from outside the library, and our rule about skips.

A test that our classes skip is run on the host's own classes, and fails here if one of those does not skip it.
"""

import gc
import random
import unittest
from collections import Counter

import numpy as np
import pytest
import torch
from run import example_script, host_tests_folder
from transformers.models.auto import modeling_auto


if not host_tests_folder().is_dir():
    raise pytest.UsageError(f"{host_tests_folder()} is missing; run `make conformance`, which fetches it")

from host_tests import test_fsdp_mixin, test_modeling_common, test_tensor_parallel_mixin

from vanilla_transformer_hf import RecurrentSeq2SeqConfig, VanillaTransformerConfig


# The suite looks classes up by name in these tables, which `AutoModel.register` does not write to.
modeling_auto.MODEL_MAPPING_NAMES[VanillaTransformerConfig.model_type] = (
    "VanillaTransformerModel",
    "VanillaTransformerEncoderModel",
    "VanillaTransformerDecoderModel",
)
modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[VanillaTransformerConfig.model_type] = (
    "VanillaTransformerForConditionalGeneration"
)
modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[VanillaTransformerConfig.model_type] = (
    "VanillaTransformerForImageTextToText"
)
modeling_auto.MODEL_MAPPING_NAMES[RecurrentSeq2SeqConfig.model_type] = "RecurrentSeq2SeqModel"
modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[RecurrentSeq2SeqConfig.model_type] = (
    "RecurrentSeq2SeqForConditionalGeneration"
)

for table, head in (
    (modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, "MaskedLM"),
    (modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, "SequenceClassification"),
    (modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES, "TokenClassification"),
    (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "CausalLM"),
):
    table[VanillaTransformerConfig.model_type] = f"VanillaTransformerFor{head}"

collect_ignore = ["host_tests", *([] if example_script().is_file() else ["test_host_examples.py"])]

# The tests that start several processes run only for the models named here.
test_tensor_parallel_mixin.TP_DISTRIBUTED_TEST_MODEL_TYPES.add(VanillaTransformerConfig.model_type)
test_fsdp_mixin.FSDP_DISTRIBUTED_TEST_MODEL_TYPES.add(VanillaTransformerConfig.model_type)


def pytest_addoption(parser: pytest.Parser):
    parser.addoption("--hosts", action="store_true", help="run BART and Marian too, and compare what is skipped")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    """Keep our classes; with --hosts, those of transformers as well."""
    if not config.getoption("--hosts"):
        items[:] = [item for item in items if item.cls.hosts]


def pytest_collection_finish():
    """Spare the garbage collector, which the suite calls twice a test, the objects of all imported modules."""
    gc.freeze()


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    """The suite draws its inputs from generators that it does not seed."""
    for seed in (random.seed, np.random.seed, torch.manual_seed, test_modeling_common.global_rng.seed):
        seed(0)


def skip_reason(test_class: type[unittest.TestCase], name: str) -> str | None:
    """Run one test; the reason it gives for being skipped, or None if it is not skipped."""
    result = unittest.TestResult()
    unittest.TestSuite([test_class(name)]).run(result)
    return result.skipped[0][1] if result.skipped else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Turn a skip of ours into a failure, unless the same test is skipped for every host."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        running = [host.__name__ for host in item.cls.hosts if skip_reason(host, item.name) is None]
        if running:
            report.outcome = "failed"
            report.longrepr = f"{report.longrepr[2]}; but {item.name} is not skipped for {', '.join(running)}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config):
    """Say what was skipped and why; with --hosts, which tests the classes do not all pass or all skip."""
    if not example_script().is_file():
        terminalreporter.section(f"not run: {example_script().name}, without a checkout in .cache/transformers")
    outcomes: dict[str, dict[str, str]] = {}  # test -> class -> outcome
    for category in ("passed", "skipped", "error", "failed"):  # the worst of a test and its subtests comes last
        for report in terminalreporter.stats.get(category, []):
            _, suite, name = report.nodeid.split("::")
            reason = report.longrepr[2].removeprefix("Skipped: ") if category == "skipped" else ""
            outcomes.setdefault(name, {})[suite] = f"{category}: {reason}" if reason else category
    suites = sorted({suite for row in outcomes.values() for suite in row})
    for suite in suites:
        column = Counter(row[suite].partition(":")[0] for row in outcomes.values() if suite in row)
        terminalreporter.section(f"{suite}: " + ", ".join(f"{n} {outcome}" for outcome, n in column.items()))
        for outcome, n in Counter(row[suite] for row in outcomes.values() if suite in row).most_common():
            if outcome.startswith("skipped"):
                terminalreporter.write_line(f"{n:3} {outcome}")
    if config.getoption("--hosts"):
        terminalreporter.section("tests that differ")
        for name, row in sorted(outcomes.items()):
            if len({outcome.partition(":")[0] for outcome in row.values()}) > 1:
                terminalreporter.write_line(f"{name}: " + "; ".join(f"{suite} {row[suite]}" for suite in sorted(row)))
