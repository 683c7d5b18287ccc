"""What turns a good model into a hostile one: changes to its messages, its meaning and its bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto, helper

from frontends._onnx.load import graphs_of

INTEGERS = (
    *(-(2**63), -(2**31), -100, -2, -1, 0, 1, 2, 3, 7, 16, 255, 256, 1000, 65536),
    *(2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1),
)
FLOATS = (float("nan"), float("inf"), float("-inf"), -0.0, 0.0, -1.0, 0.5, 1e-45, 1e38, 3.0)
WORDS = ("", " ", "x", "a\nb", "../x", "/etc/passwd", "\0", "é", "name" * 1000, "%s{}", "nearest", "CRD")
EXTERNAL = {
    "location": ("weights.bin", "absent.bin", "../weights.bin", "/etc/passwd", "link.bin", "", ".", "a\0b"),
    "offset": ("0", "4", "-4", "1000000", "4611686018427387904", "x", "1.5", ""),
    "length": ("16", "0", "-16", "1000000", "9223372036854775807", "nan", "16 ", ""),
    "checksum": ("0",),
}
Mutator = Callable[[onnx.ModelProto, random.Random], None]


class NotApplicable(Exception):
    """A model has nothing that a mutator could change."""


# --- messages, whatever they mean


def messages_of(message: Message) -> Iterator[Message]:
    """A message and all inside it."""
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if _is_repeated(field) else [value]:
                yield from messages_of(inner)


def _is_repeated(field: Any) -> bool:
    """Recent protobuf has no more labels, and older has nothing else."""
    if hasattr(field, "is_repeated"):
        return field.is_repeated
    return field.label == FieldDescriptor.LABEL_REPEATED


def change_field(model: onnx.ModelProto, chance: random.Random) -> None:
    """Some field of some message gets another value, loses it, or repeats, swaps or drops an element."""
    fields = [
        (message, field)
        for message in messages_of(model)
        for field in message.DESCRIPTOR.fields
        if field.name not in UNREAD_FIELDS
    ]
    # Fields that are there, as often as those that are not: those are many more.
    present = [(message, field) for message, field in fields if _present(message, field)]
    message, field = chance.choice(present if chance.random() < 0.8 else fields)
    if _is_repeated(field):
        _change_elements(model, message, field, chance)
    elif chance.random() < 0.2:
        message.ClearField(field.name)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        _assign(getattr(message, field.name), _another(model, message, field, chance))
    else:
        setattr(message, field.name, _scalar(model, field, chance))


UNREAD_FIELDS = {"doc_string", "producer_name", "producer_version", "metadata_props", "denotation"}


def _present(message: Message, field: FieldDescriptor) -> bool:
    if _is_repeated(field):
        return len(getattr(message, field.name)) > 0
    return message.HasField(field.name)


def _change_elements(
    model: onnx.ModelProto, message: Message, field: FieldDescriptor, chance: random.Random
) -> None:
    elements = getattr(message, field.name)
    action = chance.choice(("drop", "repeat", "swap", "change", "add", "clear"))
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    index = chance.randrange(len(elements)) if len(elements) else None
    if action == "add" or index is None:
        new = _another(model, message, field, chance) if is_message else _scalar(model, field, chance)
        elements.append(new)
    elif action == "drop":
        del elements[index]
    elif action == "clear":
        message.ClearField(field.name)
    elif action == "repeat":
        elements.append(elements[index])
    elif action == "swap":
        other, ordered = chance.randrange(len(elements)), [_copied(element) for element in elements]
        ordered[index], ordered[other] = ordered[other], ordered[index]
        message.ClearField(field.name)
        getattr(message, field.name).extend(ordered)
    elif is_message:
        _assign(elements[index], _another(model, message, field, chance))
    else:
        elements[index] = _scalar(model, field, chance)


def _another(
    model: onnx.ModelProto, holder: Message, field: FieldDescriptor, chance: random.Random
) -> Message:
    """A message of the field's type from anywhere in the model, but not one that holds this one."""
    found = [
        message
        for message in messages_of(model)
        if message.DESCRIPTOR is field.message_type and not any(m is holder for m in messages_of(message))
    ]
    if not found:
        raise NotApplicable
    return _copied(chance.choice(found))


def _copied(value: Any) -> Any:
    if not isinstance(value, Message):
        return value
    copy = type(value)()
    copy.CopyFrom(value)
    return copy


def _assign(message: Message, value: Message) -> None:
    message.CopyFrom(value)


def _scalar(model: onnx.ModelProto, field: FieldDescriptor, chance: random.Random) -> Any:
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return chance.choice(FLOATS)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return chance.choice([value.number for value in field.enum_type.values])
    if field.type == FieldDescriptor.TYPE_STRING:
        return chance.choice((*WORDS, *_names(model)))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes(chance.randrange(256) for _ in range(chance.choice((0, 1, 4, 7, 16, 64))))
    value = chance.choice(INTEGERS) if chance.random() < 0.5 else chance.randrange(-2, 24)
    bits = 32 if field.cpp_type == FieldDescriptor.CPPTYPE_INT32 else 64
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return value % 2**64
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def _names(model: onnx.ModelProto) -> list[str]:
    """What tensors are called."""
    graphs = list(graphs_of(model.graph))
    of_nodes = [name for graph in graphs for node in graph.node for name in (*node.input, *node.output)]
    return sorted({*of_nodes, *(value.name for graph in graphs for value in graph.input)})


# --- models, by what they mean


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    nodes = [node for graph in graphs_of(model.graph) for node in graph.node]
    if not nodes:
        raise NotApplicable
    return nodes


def rewire(model: onnx.ModelProto, chance: random.Random) -> None:
    """A node reads another tensor: perhaps its own output, or that of a later node."""
    node = chance.choice(_nodes(model))
    if not node.input:
        raise NotApplicable
    node.input[chance.randrange(len(node.input))] = chance.choice(_names(model))


def rename_output(model: onnx.ModelProto, chance: random.Random) -> None:
    """Two values of one name."""
    node = chance.choice(_nodes(model))
    if not node.output:
        raise NotApplicable
    node.output[chance.randrange(len(node.output))] = chance.choice(_names(model))


def reorder(model: onnx.ModelProto, chance: random.Random) -> None:
    """Nodes in any order."""
    nodes = [_copied(node) for node in model.graph.node]
    chance.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def change_operator(model: onnx.ModelProto, chance: random.Random) -> None:
    """The same inputs and attributes, another operator."""
    node = chance.choice(_nodes(model))
    schemas = onnx.defs.get_all_schemas()
    node.op_type = chance.choice(
        sorted({schema.name for schema in schemas if schema.domain in ("", "ai.onnx")})
    )


def change_opset(model: onnx.ModelProto, chance: random.Random) -> None:
    """Another version of the operators."""
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = chance.choice((*range(-1, 30), 1000, 2**40))


def change_attribute(model: onnx.ModelProto, chance: random.Random) -> None:
    """An attribute of the operator, set to anything, perhaps of another type."""
    node = chance.choice(_nodes(model))
    names = {attribute.name for attribute in node.attribute} | {"bogus"}
    if onnx.defs.has(node.op_type):
        names |= set(onnx.defs.get_schema(node.op_type).attributes)
    name = chance.choice(sorted(names))
    kept = [_copied(attribute) for attribute in node.attribute if attribute.name != name]
    value = chance.choice(
        (
            chance.choice(INTEGERS),
            chance.randrange(-3, 9),
            chance.choice(FLOATS),
            chance.choice(WORDS),
            [chance.choice(INTEGERS) for _ in range(chance.randrange(1, 5))],
            [chance.randrange(-2, 5) for _ in range(chance.randrange(1, 9))],
            [chance.choice(FLOATS) for _ in range(chance.randrange(1, 4))],
            ["a", "b"],
            helper.make_tensor("t", TensorProto.FLOAT, [2], [1.0, 2.0]),
        )
    )
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def change_initializer(model: onnx.ModelProto, chance: random.Random) -> None:
    """Another shape, type or content of a weight, in agreement with itself or not."""
    tensors = [tensor for graph in graphs_of(model.graph) for tensor in graph.initializer]
    if not tensors:
        raise NotApplicable
    tensor = chance.choice(tensors)
    action = chance.choice(("dims", "values", "type", "both", "length", "strings"))
    if action == "dims":
        del tensor.dims[:]
        tensor.dims.extend(chance.choice(INTEGERS) for _ in range(chance.randrange(5)))
    elif action == "values":
        kind = chance.choice((TensorProto.INT64, TensorProto.FLOAT, TensorProto.INT32, TensorProto.BOOL))
        floats = kind == TensorProto.FLOAT
        count = chance.randrange(6)
        values = [
            chance.choice(FLOATS) if floats else chance.choice((*range(-3, 9), 2**31 - 1))
            for _ in range(count)
        ]
        tensor.CopyFrom(helper.make_tensor(tensor.name, kind, [count], values))
    elif action == "type":
        tensor.data_type = chance.randrange(-1, 26)
    elif action == "both":
        tensor.float_data.extend([1.0, 2.0])
        tensor.raw_data = b"\0" * chance.choice((0, 4, 8))
    elif action == "length":
        tensor.raw_data = tensor.raw_data[: chance.randrange(len(tensor.raw_data) + 1)] + b"x"
    else:
        tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.STRING, [2], [b"a", b"\xff"]))


def change_input(model: onnx.ModelProto, chance: random.Random) -> None:
    """An input of another type or shape, or that is no tensor."""
    if not model.graph.input:
        raise NotApplicable
    value = chance.choice(model.graph.input)
    kind = chance.choice(("shape", "type", "sequence", "optional", "map", "none"))
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    if kind == "shape":
        sizes = [chance.choice((*INTEGERS, "n", None)) for _ in range(chance.randrange(6))]
        value.type.CopyFrom(helper.make_tensor_type_proto(value.type.tensor_type.elem_type, sizes))
    elif kind == "type":
        value.type.tensor_type.elem_type = chance.randrange(-1, 26)
    elif kind == "sequence":
        value.type.CopyFrom(helper.make_sequence_type_proto(tensor))
    elif kind == "optional":
        value.type.CopyFrom(helper.make_optional_type_proto(tensor))
    elif kind == "map":
        value.type.CopyFrom(helper.make_map_type_proto(TensorProto.INT64, tensor))
    else:
        value.ClearField("type")


def put_outside(model: onnx.ModelProto, chance: random.Random) -> None:
    """A weight in a file that may not be there, not be the model's, or be too short."""
    tensors = [tensor for graph in graphs_of(model.graph) for tensor in graph.initializer]
    if not tensors:
        raise NotApplicable
    tensor = chance.choice(tensors)
    if chance.random() < 0.7:
        tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, values in EXTERNAL.items():
        if chance.random() < 0.7:
            tensor.external_data.add(key=key, value=chance.choice(values))


def nest(model: onnx.ModelProto, chance: random.Random) -> None:
    """The whole graph in the branches of an If, once or often."""
    for depth in range(chance.choice((1, 2, 5, 20, 30))):
        inner = _copied(model.graph)
        if inner.ByteSize() > 200_000:
            return
        del inner.input[:]
        outer = model.graph
        outputs = [f"{value.name}_{depth}" for value in outer.output]
        node = helper.make_node("If", ["nested"], outputs, f"if_{depth}", then_branch=inner)
        if chance.random() < 0.5 and depth < 3:
            node.attribute.append(helper.make_attribute("else_branch", inner))
        del outer.node[:], outer.initializer[:]
        outer.node.append(node)
        for value, name in zip(outer.output, outputs):
            value.name = name
        if not depth:
            outer.input.append(helper.make_tensor_value_info("nested", TensorProto.BOOL, []))


def recurse(model: onnx.ModelProto, chance: random.Random) -> None:
    """A function that calls itself, or two that call each other, or many that call the next twice."""
    kind = chance.choice(("itself", "each other", "doubling"))
    count = {"itself": 1, "each other": 2, "doubling": chance.choice((3, 8, 40))}[kind]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("loops", 1)]
    for index in range(count):
        callee = (index + 1) % count
        if kind == "doubling" and index == count - 1:
            nodes = [helper.make_node("Relu", ["a"], ["c"])]
        elif kind == "doubling":
            nodes = [
                helper.make_node(f"F{callee}", ["a"], ["b"], domain="loops"),
                helper.make_node(f"F{callee}", ["b"], ["c"], domain="loops"),
            ]
        else:
            nodes = [helper.make_node(f"F{callee}", ["a"], ["c"], domain="loops")]
        model.functions.append(helper.make_function("loops", f"F{index}", ["a"], ["c"], nodes, opsets))
    if not any(entry.domain == "loops" for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("loops", 1))
    names = [value.name for value in model.graph.input]
    if not names:
        raise NotApplicable
    model.graph.node.append(helper.make_node("F0", [chance.choice(names)], ["recursed"], domain="loops"))
    model.graph.output.append(helper.make_tensor_value_info("recursed", TensorProto.FLOAT, None))


def lengthen(model: onnx.ModelProto, chance: random.Random) -> None:
    """A long chain of nodes behind the last output."""
    if not model.graph.output:
        raise NotApplicable
    name = model.graph.output[0].name
    operator = chance.choice(("Relu", "Identity", "Neg", "Add"))
    for index in range(chance.choice((10, 200, 1000))):
        inputs = [name, name] if operator == "Add" else [name]
        name = f"link{index}"
        model.graph.node.append(helper.make_node(operator, inputs, [name]))
    model.graph.output[0].name = name


STRUCTURED: tuple[tuple[Mutator, int], ...] = (  # and how often, in comparison
    (change_field, 12),
    (change_attribute, 6),
    (change_initializer, 5),
    (change_input, 4),
    (change_operator, 3),
    (rewire, 3),
    (rename_output, 2),
    (change_opset, 2),
    (put_outside, 2),
    (reorder, 1),
    (nest, 1),
    (recurse, 1),
    (lengthen, 1),
)


# --- bytes


def change_bytes(data: bytes, chance: random.Random) -> bytes:
    """Cut anywhere, flip bits, write over, insert, take out or repeat a part."""
    if not data:
        return b"\0"
    action = chance.choice(("cut", "flip", "flip", "write", "insert", "remove", "repeat", "not utf-8"))
    start = chance.randrange(len(data))
    end = min(len(data), start + chance.choice((1, 1, 2, 4, 8, 64)))
    noise = bytes(chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))) for _ in range(end - start))
    if action == "cut":
        return data[:start]
    if action == "flip":
        return data[:start] + bytes([data[start] ^ 1 << chance.randrange(8)]) + data[start + 1 :]
    if action == "insert":
        return data[:start] + noise + data[start:]
    if action == "remove":
        return data[:start] + data[end:]
    if action == "repeat":
        return data[:end] + data[start:]
    if action == "not utf-8":
        letters = [index for index, byte in enumerate(data) if 97 <= byte <= 122]
        start = chance.choice(letters) if letters else start
        return data[:start] + b"\xff" + data[start + 1 :]
    return data[:start] + noise + data[end:]


def mutated(model: onnx.ModelProto, chance: random.Random) -> tuple[bytes, list[str]]:
    """A changed model as a file has it, and the names of the mutators that made it."""
    copy = _copied(model)
    names: list[str] = []
    mutators, weights = zip(*STRUCTURED)
    if chance.random() < 0.75:
        for mutator in chance.choices(mutators, weights, k=chance.choice((1, 1, 1, 2, 3))):
            try:
                changed = _copied(copy)
                mutator(changed, chance)
            except (NotApplicable, DecodeError):  # the latter where it is deeper than protobuf allows
                continue
            copy = changed
            names.append(mutator.__name__)
    data = copy.SerializeToString()
    if not names or chance.random() < 0.05:
        for _ in range(chance.choice((1, 1, 2, 4))):
            data = change_bytes(data, chance)
        names.append("change_bytes")
    return data, names
