"""The sentences under the fields of a dataclass, read from its source."""

import ast
import inspect
import textwrap


def field_docs(kind: type) -> dict[str, str]:
    """What is written under each field of a dataclass and of those it is derived from, in one line each.

    A field that is only given another default further down keeps the sentence that it has above.
    """
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef), "the source of a class is one"
        for field, after in zip(body.body, body.body[1:]):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                docs[field.target.id] = " ".join(str(after.value.value).split())
    return docs
