import torch
from tiny import cross_entropy, same_weights, tiny_batches, tiny_network

from refilled.data import Batch
from refilled.methods import Stage
from refilled.training import PlainStep


def test_a_step_is_what_one_would_write_by_hand():
    ours, theirs = tiny_network(), tiny_network()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    step = PlainStep(cross_entropy(ours), momentum=0.9, weight_decay=5e-4)
    for batch in tiny_batches().epoch(0):
        values = step(batch, lr=0.1)
        loss = torch.nn.functional.cross_entropy(theirs(batch.images)[1], batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.equal(values, loss.detach()[None])
    assert step.terms == ("cross_entropy",)
    assert same_weights(ours, theirs)


def test_terms_are_added_and_the_learning_rate_is_used():
    weight = torch.nn.Parameter(torch.tensor([1.0]))

    def loss(batch: Batch) -> dict[str, torch.Tensor]:
        return {"one": 2 * weight.sum(), "other": 3 * weight.sum()}

    step = PlainStep(Stage("s", 1, [weight], loss), momentum=0.0, weight_decay=0.0)
    batch = next(tiny_batches().epoch(0))
    assert step(batch, lr=0.1).tolist() == [2.0, 3.0]
    assert weight.item() == 1 - 0.1 * 5
    assert step.terms == ("one", "other")


def test_autocast_reaches_the_network_but_not_the_losses():
    network, seen = tiny_network(), []

    def loss(batch: Batch) -> dict[str, torch.Tensor]:
        _, logits = network(batch.images)
        seen.append(logits.dtype)
        return {"mean": logits.mean()}

    values = PlainStep(Stage("s", 1, list(network.parameters()), loss), 0.9, 0.0, torch.bfloat16)(
        next(tiny_batches().epoch(0)), 0.1
    )
    assert seen == [torch.bfloat16]
    assert values.dtype == torch.float32
