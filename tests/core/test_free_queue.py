from hypothesis import given
from hypothesis import strategies as st

from looseleaf.core.free_queue import Block, FreeQueue


def ids(queue: FreeQueue) -> list[int]:
    return [block.block_id for block in queue]


def test_the_front_is_reused_first() -> None:
    queue = FreeQueue([Block(i) for i in range(3)])
    assert [queue.pop_front().block_id for _ in range(3)] == [0, 1, 2]
    assert len(queue) == 0


def test_a_removed_block_is_out_wherever_it_stood() -> None:
    for victim in range(4):
        blocks = [Block(i) for i in range(4)]
        queue = FreeQueue(blocks)
        queue.remove(blocks[victim])
        assert ids(queue) == [i for i in range(4) if i != victim]
        assert blocks[victim].prev is None
        assert blocks[victim].next is None


@given(st.lists(st.tuples(st.sampled_from("bfrp"), st.integers(0, 7))))
def test_behaves_like_a_list(operations: list[tuple[str, int]]) -> None:
    blocks = [Block(i) for i in range(8)]
    queue, model = FreeQueue([]), []
    for operation, i in operations:
        if operation == "b" and i not in model:
            queue.push_back(blocks[i])
            model.append(i)
        elif operation == "f" and i not in model:
            queue.push_front(blocks[i])
            model.insert(0, i)
        elif operation == "r" and i in model:
            queue.remove(blocks[i])
            model.remove(i)
        elif operation == "p" and model:
            assert queue.pop_front().block_id == model.pop(0)
        assert ids(queue) == model
        assert len(queue) == len(model)
