"""Metrics and notes of the memory arena, with their units and directions."""

from collections.abc import Mapping

from selfplay.types import Metric

MEASURES: Mapping[str, Metric] = {
    "exact_match": Metric(unit="fraction", better="higher"),
    "f1": Metric(unit="fraction", better="higher"),
    "evidence_shown": Metric(unit="fraction", better="higher"),
    "malformed_operations": Metric(unit="fraction", better="lower"),
    "share_*": Metric(unit="fraction"),
    "bank_size": Metric(unit="count"),
    "memories_selected": Metric(unit="count"),
    "memories_unknown": Metric(unit="count", better="lower"),
    "facts_per_turn": Metric(unit="count"),
    "facts_not_said": Metric(unit="fraction"),
    "summaries_per_session": Metric(unit="count"),
    "turns_per_summary": Metric(unit="count"),
    "malformed_extractions": Metric(unit="fraction", better="lower"),
    "memories_kept": Metric(unit="count"),
    "kept_cited": Metric(unit="fraction", better="higher"),
    "malformed_reflections": Metric(unit="fraction", better="lower"),
}
