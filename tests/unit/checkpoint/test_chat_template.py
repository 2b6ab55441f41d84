import json
from pathlib import Path

import pytest

from shared.checkpoint.chat_template import ChatTemplate, load_chat_template
from shared.checkpoint.errors import ChatTemplateError, CheckpointError
from shared.checkpoint.locate import PACKAGED_MODEL, ModelSource, locate
from shared.checkpoint.tokenizer import load_tokenizer
from tests.support.chat_templates import CHATS, SPECIAL_TOKENS, TEMPLATES
from tests.support.gguf_builder import byte_level_metadata, llama_tensors, write_gguf

GOLDENS = Path(__file__).resolve().parents[2] / "goldens" / "chat_templates.json"
HI = [{"role": "user", "content": "Hi <b>&"}]
BYTES = load_tokenizer(locate("dummy:tiny"))


def rendered(template: str, **variables: str) -> str:
    return ChatTemplate("m", template, variables).render(HI)


def test_a_dummy_has_a_plain_template() -> None:
    template = load_chat_template(locate("dummy:tiny"), BYTES)
    assert template.render(HI) == "<|start|>user\nHi <b>&<|end|>\n<|start|>assistant\n"
    assert template.render(HI, add_generation_prompt=False).endswith("<|end|>\n")


def test_a_gguf_template_knows_its_special_tokens(tmp_path: Path) -> None:
    metadata = byte_level_metadata()
    metadata["tokenizer.chat_template"] = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    path = write_gguf(tmp_path / "m.gguf", metadata, llama_tensors())
    source = ModelSource("m", "gguf", path=path)
    template = load_chat_template(source, load_tokenizer(source))
    assert template.render(HI) == "<|im_start|>Hi <b>&<|im_end|>"


def test_a_folder_keeps_its_template_in_either_file(tmp_path: Path) -> None:
    source = ModelSource("m", "hf", path=tmp_path)
    config = {"chat_template": "{{ bos_token }}one", "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_chat_template(source, BYTES).render(HI) == "<s>one"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}two")
    assert load_chat_template(source, BYTES).render(HI) == "<s>two"


@pytest.mark.parametrize("name", [*TEMPLATES, PACKAGED_MODEL])
def test_chats_are_rendered_as_transformers_renders_them(name: str) -> None:
    goldens = json.loads(GOLDENS.read_text(encoding="utf-8"))["answers"]
    if name in TEMPLATES:
        template = ChatTemplate("m", TEMPLATES[name], SPECIAL_TOKENS)
    else:
        try:
            source = locate(PACKAGED_MODEL)
        except CheckpointError as error:
            pytest.skip(str(error))
        template = load_chat_template(source, load_tokenizer(source))
    for chat_name, chat in CHATS.items():
        found = [template.render(chat, add_generation_prompt=is_open) for is_open in (False, True)]
        assert found == goldens[f"{name}: {chat_name}"]


def test_a_model_without_a_template_says_what_to_do(tmp_path: Path) -> None:
    template = load_chat_template(ModelSource("m", "hf", path=tmp_path), BYTES)
    assert not template.is_present
    with pytest.raises(ChatTemplateError, match=r"m has no chat template.*/v1/completions"):
        template.render(HI)


def test_blocks_leave_no_blank_lines() -> None:
    assert rendered("{% if true %}\n  {% set x = 1 %}\nx\n{% endif %}\ny") == "x\ny"


def test_text_and_json_are_not_escaped() -> None:
    assert rendered("{{ messages[0].content }} {{ messages[0] | tojson }}") == (
        'Hi <b>& {"role": "user", "content": "Hi <b>&"}'
    )


def test_a_template_may_refuse_messages() -> None:
    with pytest.raises(ChatTemplateError, match=r"messages: .* roles must alternate"):
        rendered("{{ raise_exception('roles must alternate') }}")


def test_messages_a_template_cannot_join_are_refused_not_a_crash() -> None:
    template = ChatTemplate("m", "{{ 'a' + messages[0]['content'] }}", {})
    with pytest.raises(ChatTemplateError, match=r"^messages:"):
        template.render([{"role": "user", "content": ["part"]}])


def test_loop_controls_are_there() -> None:
    assert (
        rendered("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "1"
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
    ],
)
def test_a_template_is_held_in_a_sandbox(template: str) -> None:
    with pytest.raises(ChatTemplateError):
        rendered(template)


def test_a_template_that_does_not_parse_is_one_clear_error() -> None:
    with pytest.raises(ChatTemplateError, match="m: chat template is not valid"):
        ChatTemplate("m", "{% if %}", {})
