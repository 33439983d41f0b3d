"""Names that an earlier generation of such libraries had, with what stands in their place here."""

from collections.abc import Mapping

_HARNESS = "RolloutHarness, made with local(), a URL or from_spec()"

RETIRED: Mapping[str, str] = {
    "HuggingFaceGym": _HARNESS,
    "ReasoningGym": _HARNESS,
    "SyncMultiTurnVecEnv": _HARNESS,
    "SFTGym": 'DatasetEnv with objective="sft"',
    "PreferenceGym": 'DatasetEnv with objective="preference"',
    "PromptDatasetEnv": "QADatasetEnv",
    "IterablePromptBatchGym": "RolloutCollector with a TaskAssigner",
    "TokenObservationWrapper": "process_observation, or observation_field and observation_processor",
    "finetune_llm_multiturn": "train_llm_rollout",
    "finetune_llm_reasoning": "train_llm_rollout",
    "finetune_llm_sft": "train_llm_dataset",
    "finetune_llm_preference": "train_llm_dataset",
}
"""What was, and what is."""
