//! Tests of options and names that users know from other programs.

use super::*;

#[test]
fn usual_options_have_their_usual_letters() {
    let (file, case) = (file(LLAMA), &golden(LLAMA).cases[0]);
    let short = ["-p", &case.prompt, "-n", "2", "--temp", "0", "--activations", "f32", "--json"];
    let long = ["run", &file, "--threads", "1", "--ctx", "64"];
    let expected = done(&[&long[..], &short].concat()).json();
    assert_eq!(numbers(&expected["tokens"]), case.greedy_ids[..2]);
    for options in [["-m", &file, "-t", "1", "-c", "64"], ["--model", &file, "-t", "1", "--ctx-size", "64"]] {
        let json = done(&[&["run"][..], &options, &short].concat()).json();
        assert_eq!((&json["tokens"], &json["plan"]["context"]), (&expected["tokens"], &64.into()));
    }
    assert!(done(&["inspect", "-m", &file]).out.contains("tales-q8_0.gguf"));
    let output = ragtag().args(["inspect", "-m", &file, &file]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn options_of_other_programs_are_refused_with_the_word_for_them_here() {
    for (arguments, word) in [
        (&["run", "-ngl", "99"][..], "--device"),
        (&["run", "model.gguf", "--n-gpu-layers=99"], "--split"),
        (&["bench", "-ts", "3,1"], "--split"),
        (&["chat", "-fa", "on"], "leave it out"),
        (&["run", "-b", "512"], "--chunk"),
        (&["run", "--cache-type-k", "q8_0"], "--kv-keys"),
    ] {
        let output = ragtag().args(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        let said = error.starts_with("ragtag: Ragtag has no option -") && error.contains(word);
        assert!(said && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn names_of_apis_have_other_spellings() {
    let plan = |options: &[&str]| done(&[&["plan", "--json"], options, &TWO].concat()).json();
    let split = ["--device", "CPU:0,cpu:1", "--split", "0-6=CPU:1,7-13=cpu:0", "--memory", "CPU:0=1GiB"];
    assert_eq!(plan(&split)["stages"][0]["device"], "cpu:1");
    assert_eq!(plan(&["--exclude", "CPU:0"])["stages"][0]["device"], "cpu:1");
    let output = ragtag().args(["plan", "--device", "OCL"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("opencl cannot be used"), "{output:?}");
}

#[test]
fn a_run_uses_a_template_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jinja");
    std::fs::write(&path, "{{ messages[-1].content }} the wolf").unwrap();
    let chat = ["run", "--chat", "--template", text(&path), "-p", "Once", "-n", "1", "--json"];
    let plain = ["run", "-p", "Once the wolf", "-n", "1", "--json"];
    let ids = |arguments: &[&str]| numbers(&done(arguments).json()["prompt_tokens"]);
    assert_eq!(ids(&chat), ids(&plain));
    let output = ragtag().args(["run", "--template", text(&path)]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "needs --chat");
    let output = ragtag().args(["run", "--chat", "--template", "-", "-f", "-"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("standard input can be only one of"),
        "{output:?}"
    );
}
