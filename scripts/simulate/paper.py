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
GLOBAL_HIT = {"conversation": 0.375, "synthetic": 0.622}
GLOBAL_PREFILL_S = {"conversation": 1.051, "synthetic": 0.783}
LOCAL_HIT = {"conversation": 0.169, "synthetic": 0.264}
LOCAL_PREFILL_S = {"conversation": 1.379, "synthetic": 1.498}
"""Fig. 10, 10 prefill nodes of 3 M tokens."""
TTFT_BY_GBPS_S = {24: 5.09, 40: 2.40, 80: 1.73, 100: 1.60, 160: 1.41, 320: 1.25, 400: 1.25}
RECOMPUTE_TTFT_S = 2.62
"""Fig. 13, synthetic."""
PREFILL_BY_KTOKENS_S = {8: 1.00, 16: 2.05, 32: 4.48, 64: 10.58, 128: 27.51}
PREFILL_95_BY_KTOKENS_S = {8: 0.135, 16: 0.227, 32: 0.406, 64: 0.882, 128: 2.329}
"""Fig. 14, without and with 95 % of the prompt cached."""
REFUSED = {"baseline": 4_183, "early_rejection": 3_771, "predicted": 3_589}
"""arXiv v3, of 23,000 requests at twice their rate on 8P8D."""
