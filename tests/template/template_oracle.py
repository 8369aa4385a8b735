"""Python's jinja2 in the environment in which chat templates are rendered: the oracle of this folder's tests.

Needs only jinja2. The settings are those of transformers' utils/chat_template_utils.py: immutable sandbox, trim_blocks,
lstrip_blocks, loop controls, {% generation %}, tojson without HTML escapes, raise_exception, strftime_now, and the
reduced dict and namespace.
SPDX-License-Identifier: MIT
"""
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Dict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)


class Space(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attrs = dict(*args, **kwargs)
        for name in attrs:
            Space._check(name)
        jinja2.utils.Namespace.__init__(self, attrs)

    def __setitem__(self, name, value):
        Space._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError("underscore on a namespace")


def environment(now=0):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(now).strftime(f)
    env.globals["dict"] = Dict()
    env.globals["namespace"] = Space
    return env


def render(source, variables, now=0):
    """(text, None) or (None, error)."""
    try:
        return environment(now).from_string(source).render(**variables), None
    except RecursionError as e:
        return None, "RecursionError: %s" % e
    except Exception as e:  # every failure of a template is the same to the caller
        return None, "%s: %s" % (type(e).__name__, e)
