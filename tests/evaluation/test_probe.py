import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from refilled.evaluation import fit_probe, logistic_regression


def blobs(classes: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(classes, 6, generator=generator) + 3
    labels = torch.arange(20 * classes) % classes
    return centres[labels] + torch.randn(len(labels), 6, generator=generator), labels


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_it_is_scikit_learns_on_standardised_embeddings(classes):
    known, labels = blobs(classes)
    asked = 4 * torch.randn(50, 6) + 3
    scaler = StandardScaler().fit(known.numpy())
    model = LogisticRegression(max_iter=300).fit(scaler.transform(known.numpy()), labels.numpy())
    wanted = torch.as_tensor(model.predict(scaler.transform(asked.numpy())))
    found = logistic_regression(known, labels, asked, classes)
    assert (found == wanted).double().mean() > 0.97  # the deviation is divided by N - 1 here
    p = torch.as_tensor(model.predict_proba(scaler.transform(asked.numpy())))
    assert torch.allclose(
        fit_probe(known, labels, classes).classify(asked).softmax(1).double(), p.double(), atol=0.05
    )


def test_a_class_without_images_is_never_predicted():
    known, labels = blobs(3)
    found = logistic_regression(known, labels + 1, known, 5)
    assert set(found.tolist()) <= {1, 2, 3}
