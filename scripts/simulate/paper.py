"""Figures of Mooncake (FAST'25; Fig. 9-table of the arXiv version for refusals) to stand beside.

Values in print, or read off a figure (about ±1 %).
"""

TTFT_BY_POLICY_S = {
    "global_cache_aware": 3.07,
    "local_cache_aware": 3.58,
    "least_loaded": 5.27,
    "random": 19.65,
}
"""Fig. 5, mean, conversation."""
GLOBAL_HIT = {"conversation": 0.375, "toolagent": 0.581, "synthetic": 0.622}
GLOBAL_PREFILL_S = {"conversation": 1.051, "toolagent": 0.521, "synthetic": 0.783}
LOCAL_HIT = {"conversation": 0.169, "toolagent": 0.420, "synthetic": 0.264}
LOCAL_PREFILL_S = {"conversation": 1.379, "toolagent": 0.703, "synthetic": 1.498}
"""Fig. 10, 10 prefill nodes of 3 M tokens."""
TTFT_BY_GBPS_S = {24: 5.09, 40: 2.40, 80: 1.73, 100: 1.60, 160: 1.41, 320: 1.25, 400: 1.25}
RECOMPUTE_TTFT_S = 2.62
"""Fig. 13, synthetic."""
PREFILL_BY_KTOKENS_S = {8: 1.00, 16: 2.05, 32: 4.48, 64: 10.58, 128: 27.51}
PREFILL_95_BY_KTOKENS_S = {8: 0.135, 16: 0.227, 32: 0.406, 64: 0.882, 128: 2.329}
"""Fig. 14, without and with 95 % of the prompt cached."""
REFUSED = {"baseline": 4_183, "early_rejection": 3_771, "predicted": 3_589}
"""arXiv v3, of 23,000 requests at twice their rate on 8P8D."""

TTFT_QUARTILES_S = {
    "global_cache_aware": {"q1": 0.39, "median": 1.72, "q3": 4.14},
    "local_cache_aware": {"q1": 0.56, "median": 2.16, "q3": 5.14},
    "least_loaded": {"q1": 1.05, "median": 3.56, "q3": 7.41},
    "random": {"q1": 3.54, "median": 13.72},
}
"""Fig. 5."""
PREFILL_GPU_S = {
    "conversation": {"mooncake": 1.062, "plain": 1.661, "prefix": 1.523, "chunked": 2.021},
    "toolagent": {"mooncake": 0.527, "plain": 1.117, "prefix": 0.740, "chunked": 1.415},
    "synthetic": {"mooncake": 0.733, "plain": 2.022, "prefix": 1.896, "chunked": 2.436},
}
"""Fig. 8; plain, prefix and chunked are vLLM's."""
HIT_BY_TOKENS = {
    "conversation": {
        10_000: 0.0449, 100_000: 0.0731, 1_000_000: 0.0866, 2_000_000: 0.1202, 4_000_000: 0.2149,
        10_000_000: 0.3263, 50_000_000: 0.3983,
    },
    "toolagent": {
        10_000: 0.1734, 100_000: 0.3627, 1_000_000: 0.3865, 2_000_000: 0.4136, 4_000_000: 0.4839,
        10_000_000: 0.5608, 50_000_000: 0.5948,
    },
    "synthetic": {
        10_000: 0.0004, 100_000: 0.0117, 1_000_000: 0.1461, 2_000_000: 0.2345, 4_000_000: 0.3805,
        10_000_000: 0.5886, 50_000_000: 0.6582,
    },
}  # fmt: skip
"""Fig. 9."""
MAX_COPIES = {
    "conversation": {10: 8, 100: 7, 1_000: 6, 10_000: 3},
    "toolagent": {10: 8, 100: 7, 1_000: 5, 10_000: 3},
    "synthetic": {10: 5, 100: 4, 1_000: 5, 10_000: 2},
}
"""Fig. 11: the most replicas of the block of a rank."""
EFFECTIVE_BY_SPLIT = {
    "5P11D": 0.777, "6P10D": 0.972, "7P9D": 0.991, "8P8D": 0.990, "9P7D": 0.992, "10P6D": 0.984,
    "11P5D": 0.861,
}  # fmt: skip
SPLIT_TTFT_S = (5.74, 1.71, 1.30, 1.19, 1.12, 1.11, 1.14)
SPLIT_TBT_MS = (31.5, 31.8, 32.9, 35.0, 38.3, 44.2, 58.3)
"""Fig. 15."""
