//! Templates that are endless, huge, deep or malformed end with an error. A test that hangs, aborts or takes
//! much memory has failed.

use proptest::prelude::*;
use ragtag_chat::{Conversation, Error, Limit, Limits, Message, Template};

/// Renders with lower limits than the default ones, so that the tests take less time.
fn render(source: &str) -> ragtag_chat::Result<String> {
    let mut limits = Limits::default();
    (limits.steps, limits.value_bytes) = (1_000_000, 64 << 20);
    let conversation = Conversation::new(vec![Message::new("user", "Hello")]);
    Template::compile(source)?.with_limits(limits).render(&conversation)
}

fn limit(source: &str) -> Limit {
    match render(source) {
        Err(Error::Limit { limit, .. }) => limit,
        other => panic!("{source:.200}: {:.200}", format!("{other:?}")),
    }
}

#[test]
fn endless_work_exceeds_the_limit_of_steps() {
    let loops = "{% for a in range(100000) %}".repeat(4) + &"{% endfor %}".repeat(4);
    for source in [
        &loops,
        "{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{% set x = s.find('b') %}{% endfor %}",
        "{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{% if 'b' in s %}{% endif %}{% endfor %}",
        "{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{% set x = s | length %}{% endfor %}",
        "{% set s = ' ' * 10000000 %}{% for i in range(100000) %}{% if s.strip() %}{% endif %}{% endfor %}",
        "{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{% set x = s == 'a' ~ s %}{% endfor %}",
        // Values that share their parts are exponentially large.
        "{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}\
         {{ n.l == n.l[:] }}",
        "{% set n = namespace(l=[]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}\
         {{ n.l | tojson | length }}",
        // Keys of dictionaries are hashed as a whole.
        "{% set n = namespace(t=()) %}{% for i in range(60) %}{% set n.t = (n.t, n.t) %}{% endfor %}\
         {% set x = {n.t: 1} %}",
        "{% set n = namespace(t=()) %}{% for i in range(60) %}{% set n.t = (n.t, n.t) %}{% endfor %}\
         {{ {}[n.t] }}",
        "{% set n = namespace(t=()) %}{% for i in range(60) %}{% set n.t = (n.t, n.t) %}{% endfor %}\
         {{ [n.t] | unique | list | length }}",
        "{% set d = {'a' * 10000000: 1} %}{% set e = {'a' * 10000000: 1} %}\
         {% for i in range(100000) %}{% if d == e %}{% endif %}{% endfor %}",
        "{% set d = {'a' * 10000000: 1} %}{% for i in range(100000) %}{% set x = dict(d) %}{% endfor %}",
        "{% set t = ('a' * 10000000,) %}{% for i in range(100000) %}{% if t in {1: 1, 2: 2} %}{% endif %}{% endfor %}",
    ] {
        assert!(matches!(limit(source), Limit::Steps | Limit::ValueBytes), "{source:.100}");
    }
}

#[test]
fn huge_values_exceed_the_limit_of_memory() {
    for source in [
        "{{ 'x' * 10 ** 9 }}",
        "{{ 10 ** 18 * 'x' }}",
        "{{ [1] * 10 ** 9 }}",
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% set s = 'a' * 100000 %}{{ s.replace('', s) }}",
        "{% set s = 'a' * 100000 %}{{ s.replace('a', s) }}",
        "{{ ('b' * 100000).join('a' * 100000) }}",
        "{{ (['a'] * 100000) | join('b' * 100000) }}",
        "{{ 'x'.center(10 ** 12) }}",
        "{{ 'x'.zfill(10 ** 12) }}",
        "{{ 'x' | indent(10 ** 12, true) }}",
        "{{ 'x' | center(10 ** 12) }}",
        "{{ '\\t'.expandtabs(10 ** 12) }}",
        "{{ [1] | tojson(indent=10 ** 12) }}",
        "{{ [1] | batch(10 ** 12, 0) | list }}",
        "{{ [1] | slice(10 ** 12) | list }}",
        "{% set n = namespace(l=['x' * 1000]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}\
         {{ n.l }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% macro m() %}{% endmacro %}{% endfor %}\
         {% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = namespace(a=1) %}{% endfor %}\
         {% endfor %}",
    ] {
        assert!(matches!(limit(source), Limit::ValueBytes | Limit::Steps), "{source}");
    }
    for source in [
        "{{ range(10 ** 12) }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
    ] {
        assert!(matches!(render(source), Err(Error::Evaluation { .. })), "{source}");
    }
}

#[test]
fn a_long_prompt_exceeds_the_limit_of_output() {
    let mut limits = Limits::default();
    limits.output_bytes = 10;
    let prompt = |source: &str| {
        Template::compile(source).unwrap().with_limits(limits).render(&Conversation::default())
    };
    assert_eq!(prompt("{{ 'x' * 10 }}").unwrap().len(), 10);
    let error = prompt("{{ 'x' * 9 }}\n{{ 'y' }}").unwrap_err();
    assert_eq!(error, Error::Limit { line: 2, limit: Limit::OutputBytes });
    assert_eq!(
        error.to_string(),
        "line 2 of the chat template: the template produces a prompt that is too long"
    );
}

#[test]
fn deep_recursion_exceeds_the_limit_of_depth() {
    for source in [
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{% if n %}{{ [(1 + f(n + 1) | length)] }}{% endif %}{% endmacro %}{{ f(1) }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% set n = namespace(l=[]) %}{% for i in range(1000) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l }}",
        "{% set n = namespace(l={}) %}{% for i in range(1000) %}{% set n.l = {'a': n.l} %}{% endfor %}",
        "{% set n = namespace(l=()) %}{% for i in range(1000) %}{% set n.l = (n.l,) %}{% endfor %}{{ n.l }}",
        "{% set n = namespace(l=[]) %}{% for i in range(1000) %}{% set n.l = {1: n.l}.items() %}{% endfor %}",
    ] {
        assert_eq!(limit(source), Limit::Depth, "{source}");
    }
    // A namespace that contains itself is no deep value.
    assert_eq!(render("{% set n = namespace() %}{% set n.n = n %}{{ n.n.n.n is defined }}").unwrap(), "True");
}

#[test]
fn deeply_nested_sources_are_syntax_errors() {
    let nested = |open: &str, close: &str| open.repeat(100_000) + &close.repeat(100_000);
    let tag = |expression: String| format!("{{{{ {expression} }}}}");
    for source in [
        tag(nested("(", ")")),
        tag(nested("[", "]")),
        tag(nested("{1:", "}")),
        tag(nested("f(", ")")),
        tag(nested("a[", "]")),
        tag("not ".repeat(100_000) + "1"),
        tag("-".repeat(100_000) + "1"),
        tag("1 if ".repeat(100_000) + "1"),
        tag("1 if 1 else ".repeat(100_000) + "1"),
        nested("{% if 1 %}", "{% endif %}"),
        nested("{% for x in y %}", "{% endfor %}"),
        nested("{% macro m() %}", "{% endmacro %}"),
        format!("{{% set {} = 1 %}}", nested("(", ")")),
        "x".repeat((1 << 20) + 1),
    ] {
        assert!(matches!(Template::compile(&source), Err(Error::Syntax { .. })), "{source:.40}");
    }
}

#[test]
fn long_chains_do_not_nest() {
    let tag = |expression: String| format!("{{{{ {expression} }}}}");
    let long = |text: &str| text.repeat(50_000);
    assert_eq!(render(&tag(format!("0{}", long(" + 1")))).unwrap(), "50000");
    assert_eq!(render(&tag(format!("1{}", long(" * 1")))).unwrap(), "1");
    assert_eq!(render(&tag(format!("'a'{}", long(" ~ 'b'")))).unwrap().len(), 50_001);
    assert_eq!(render(&tag(format!("'a'{}", long(" 'b'")))).unwrap().len(), 50_001);
    assert_eq!(render(&tag(format!("-1{}", long("|abs")))).unwrap(), "1");
    assert_eq!(render(&tag(format!("'a'{}", long(".strip()")))).unwrap(), "a");
    assert_eq!(render(&tag(format!("1{}", long(" and 1")))).unwrap(), "1");
    assert_eq!(render(&tag(format!("0{}", long(" <= 1")))).unwrap(), "True");
    let elif = format!("{{% if 0 %}}{}{{% else %}}x{{% endif %}}", "{% elif 0 %}".repeat(50_000));
    assert_eq!(render(&elif).unwrap(), "x");
}

#[test]
fn malformed_sources_are_syntax_errors_with_a_line() {
    for (source, line, part) in [
        ("{{ 1", 1, "close it with }}"),
        ("\n{% if x", 2, "close it with %}"),
        ("a\n\n{# c", 3, "comment"),
        ("{% raw %}x", 1, "endraw"),
        ("{% if x %}", 1, "elif or else or endif"),
        ("{% endif %}", 1, "unexpected tag endif"),
        ("{{ 'a }}", 1, "quote"),
        ("{{ a b }}", 1, "expected }}, found b"),
        ("{{ 1 + }}", 1, "expected an expression"),
        ("{{ (1] }}", 1, "unexpected ]"),
        ("{{ a[] }}", 1, "an index"),
        ("{{ ! }}", 1, "unexpected character '!'"),
        ("{% break %}", 1, "outside a loop"),
        ("{% include 'x' %}", 1, "not supported"),
        ("{% set true = 1 %}", 1, "cannot assign to true"),
        ("{% macro m(a=1, b) %}{% endmacro %}", 1, "default"),
        ("{{ f(a=1, 2) }}", 1, "order"),
        ("{{ '\\xZZ' }}", 1, "escape"),
        ("{{ 99999999999999999999999999999999999999999 }}", 1, "too large"),
    ] {
        match Template::compile(source) {
            Err(Error::Syntax { line: found, what }) => {
                assert!(found == line && what.contains(part), "{source}: line {found}, {what}");
            }
            other => panic!("{source}: {other:?}"),
        }
    }
}

#[test]
fn failed_operations_name_their_line() {
    for (source, line, part) in [
        ("\n{{ missing.x }}", 2, "missing is undefined"),
        ("{{ messages[0].x.y }}", 1, "dict has no attribute x"),
        ("{{ 1 + 'a' }}", 1, "the operator + does not work on a int and a str"),
        ("{{ 1 < 'a' }}", 1, "have no order"),
        ("{{ 1 / 0 }}", 1, "zero"),
        ("{{ 5() }}", 1, "cannot be called"),
        ("{{ messages.append(1) }}", 1, "append would change a list"),
        ("{{ 1 | nope }}", 1, "no filter is called nope"),
        ("{{ 1 is nope }}", 1, "no test is called nope"),
        ("{{ strftime_now('%d') }}", 1, "current time"),
        ("{% for a, b in [[1]] %}{% endfor %}", 1, "cannot assign 1 values to 2 names"),
        ("{{ namespace(_a=1) }}", 1, "underscore"),
    ] {
        match render(source) {
            Err(Error::Evaluation { line: found, what }) => {
                assert!(found == line && what.contains(part), "{source}: line {found}, {what}");
            }
            other => panic!("{source}: {other:?}"),
        }
    }
    let raised = render("{{ raise_exception('no ' ~ messages[0].role) }}").unwrap_err();
    assert_eq!(raised, Error::Raised { message: "no user".into() });
}

/// Parts of templates. Random sequences of them reach more code than random characters.
const PARTS: [&str; 60] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "-",
    "+",
    "if ",
    "else ",
    "elif ",
    "endif",
    "for ",
    "in ",
    "endfor",
    "set ",
    "endset",
    "macro ",
    "endmacro",
    "call ",
    "endcall",
    "filter ",
    "raw",
    "endraw",
    "generation",
    "messages",
    "m",
    "x",
    " ",
    "\n",
    "'a'",
    "\"é\"",
    "1",
    "2.5",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ":",
    ",",
    ".",
    "|",
    "~",
    "*",
    "**",
    "//",
    "%",
    "==",
    "<",
    "is ",
    "not ",
    "and ",
    "or ",
    "loop",
    "tojson",
    "namespace(x=1)",
    "range(3)",
    "=",
];

proptest! {
    #[test]
    fn random_templates_do_not_panic(parts in prop::collection::vec(0..PARTS.len(), 0..40)) {
        let source: String = parts.into_iter().map(|part| PARTS[part]).collect();
        let _ = render(&source);
    }

    #[test]
    fn random_expressions_do_not_panic(parts in prop::collection::vec(24..PARTS.len(), 0..16)) {
        let source: String = parts.into_iter().map(|part| PARTS[part]).collect();
        let _ = render(&format!("{{% for m in messages %}}{{{{ {source} }}}}{{% endfor %}}"));
    }
}
