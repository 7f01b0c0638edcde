use super::*;
use crate::error::ErrorClass;
use crate::tensor::Dtype;

fn tensors(names: &[&str]) -> Vec<TensorInfo> {
    names
        .iter()
        .map(|name| TensorInfo::new(*name, Dtype::U8, []).unwrap())
        .collect()
}

fn refusal(json: &str, names: &[&str]) -> String {
    let error = Layout::parse(json, &tensors(names)).unwrap_err();
    assert_eq!(
        (error.class(), error.rule()),
        (ErrorClass::Malformed, Some("R-LAY-01")),
        "{json}"
    );
    error.message().to_owned()
}

#[test]
fn files_of_shards_share_a_directory() {
    let layout = |names: &[Option<&str>]| Layout {
        files: (0..)
            .zip(names)
            .map(|(number, name)| LayoutFile {
                name: name.map(str::to_owned),
                metadata: None,
                tensors: vec![format!("t{number}")],
            })
            .collect(),
    };
    let names = |layouts: &[Layout]| -> Vec<String> {
        Layout::joined(layouts.iter().flat_map(Layout::files))
            .unwrap()
            .files()
            .iter()
            .filter_map(|file| file.name.clone())
            .collect()
    };
    assert_eq!(names(&[layout(&[None])]), ["model.safetensors"]);
    assert_eq!(
        names(&[layout(&[Some("x.safetensors")])]),
        ["x.safetensors"]
    );
    let (a, b) = (
        layout(&[Some("b.safetensors")]),
        layout(&[Some("a.safetensors")]),
    );
    assert_eq!(names(&[a, b]), ["a.safetensors", "b.safetensors"]);
    let numbered = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    assert_eq!(names(&[layout(&[None]), layout(&[None])]), numbered);
    assert_eq!(
        names(&[
            layout(&[Some("A.safetensors")]),
            layout(&[Some("a.safetensors")])
        ]),
        numbered
    );
    // Both shards have a part of the same file.
    let [first, mut second] = [
        layout(&[Some("x.safetensors")]),
        layout(&[Some("x.safetensors")]),
    ];
    second.files[0].tensors = vec!["a".to_owned()];
    let one = Layout::joined([&first, &second].into_iter().flat_map(Layout::files)).unwrap();
    assert_eq!(one.files.len(), 1);
    assert_eq!(one.files[0].tensors, ["a", "t0"]);
    second.files[0].metadata = Some([("format".to_owned(), "pt".to_owned())].into());
    assert_eq!(names(&[first, second]), numbered);
    assert_eq!(
        Layout::joined([].iter()).unwrap_err().class(),
        crate::error::ErrorClass::Usage
    );
}

#[test]
fn json_has_one_form_and_comes_back() {
    let two = r#"{"files":[{"name":"a.safetensors","metadata":{"format":"pt"},"tensors":["w","x"]},{"name":"b.safetensors","metadata":null,"tensors":["v"]}]}"#;
    let parsed = Layout::parse(two, &tensors(&["v", "w", "x"])).unwrap();
    assert!(parsed.is_directory());
    assert_eq!(parsed.to_json(), two);
    for one in [
        r#"{"files":[{"name":null,"metadata":null,"tensors":null}]}"#,
        r#"{"files":[{"name":null,"metadata":{},"tensors":null}]}"#,
        r#"{"files":[{"name":"Größe \" 1.safetensors","metadata":{"":"\u0000/"},"tensors":null}]}"#,
    ] {
        let parsed = Layout::parse(one, &tensors(&["v", "u"])).unwrap();
        assert_eq!(parsed.files()[0].tensors, ["u", "v"]);
        assert_eq!(parsed.to_json(), one);
    }
    let only = Layout::single_file(&tensors(&["v"]));
    assert_eq!(
        Layout::parse(&only.to_json(), &tensors(&["v"])).unwrap(),
        only
    );
    assert!(!only.is_directory());
}

#[test]
fn what_is_no_layout_is_refused() {
    let one = r#"{"files":[{"name":null,"metadata":null,"tensors":null}]}"#;
    let two = r#"{"files":[{"name":"a.safetensors","metadata":{"a":"b","c":"d"},"tensors":["v","x"]},{"name":"b.safetensors","metadata":null,"tensors":["w"]}]}"#;
    let of_one = ["v"];
    let of_two = ["v", "w", "x"];
    assert!(
        Layout::parse(one, &tensors(&of_one)).is_ok()
            && Layout::parse(two, &tensors(&of_two)).is_ok()
    );
    for json in [
        "",
        "null",
        "[]",
        "{}",
        r#"{"files":[]}"#,
        r#"{"files":[{}]}"#,
    ] {
        assert!(!refusal(json, &of_one).is_empty());
    }
    for (old, new) in [
        ("{\"files\"", " {\"files\""),
        ("{\"files\"", "{ \"files\""),
        ("{\"files\"", "\u{feff}{\"files\""),
        ("{\"files\"", "{\"file\":1,\"files\""),
        ("]}", "]}\n"),
        ("]}", "],\"more\":1}"),
        ("\"name\":null,", ""),
        ("\"metadata\":null,", ""),
        (",\"tensors\":null", ""),
        (
            "\"name\":null,\"metadata\":null",
            "\"metadata\":null,\"name\":null",
        ),
        ("\"name\":null", "\"name\":null,\"name\":null"),
        ("\"name\":null", "\"name\":1"),
        ("\"name\":null", "\"Name\":null"),
        ("\"metadata\":null", "\"metadata\":[]"),
        ("\"metadata\":null", "\"metadata\":{\"a\":1}"),
        ("\"tensors\":null", "\"tensors\":[\"v\"]"),
        ("\"tensors\":null", "\"tensors\":null,\"size\":1"),
    ] {
        assert!(one.contains(old), "{old}");
        assert!(!refusal(&one.replacen(old, new, 1), &of_one).is_empty());
    }
    for (old, new) in [
        ("\"a.safetensors\"", "null"),
        ("\"b.safetensors\"", "null"),
        ("\"a.safetensors\"", "\"c.safetensors\""),
        ("\"a.safetensors\"", "\"b.safetensors\""),
        ("\"a.safetensors\"", "\"B.safetensors\""),
        ("\"a.safetensors\"", "\"\\u0061.safetensors\""),
        ("\"a\":\"b\",\"c\":\"d\"", "\"c\":\"d\",\"a\":\"b\""),
        ("\"a\":\"b\",\"c\":\"d\"", "\"a\":\"b\",\"a\":\"d\""),
        ("[\"v\",\"x\"]", "[\"x\",\"v\"]"),
        ("[\"v\",\"x\"]", "[\"v\",\"v\",\"x\"]"),
        ("[\"v\",\"x\"]", "[\"v\", \"x\"]"),
        ("[\"v\",\"x\"]", "[\"v\",\"x\",]"),
        ("[\"w\"]", "null"),
        ("[\"w\"]", "[\"\\ud800\"]"),
    ] {
        assert!(two.contains(old), "{old}");
        assert!(!refusal(&two.replacen(old, new, 1), &of_two).is_empty());
    }
    assert!(refusal(&one.replacen("null", "nul", 1), &of_one).contains("byte 18 of the layout"));
}

#[test]
fn each_tensor_is_listed_exactly_once() {
    let json = |first: &str, second: &str| {
        format!(
            r#"{{"files":[{{"name":"a.safetensors","metadata":null,"tensors":{first}}},{{"name":"b.safetensors","metadata":null,"tensors":{second}}}]}}"#
        )
    };
    assert!(Layout::parse(&json(r#"["v"]"#, r#"["w"]"#), &tensors(&["v", "w"])).is_ok());
    assert!(Layout::parse(&json(r#"["v","w"]"#, "[]"), &tensors(&["v", "w"])).is_ok());
    assert!(
        refusal(&json(r#"["v"]"#, "[]"), &["v", "w"]).contains("does not list the tensor \"w\"")
    );
    assert!(refusal(&json(r#"["v"]"#, r#"["v"]"#), &["v"]).contains("duplicate"));
    assert!(refusal(&json(r#"["v","v"]"#, "[]"), &["v"]).contains("order"));
    assert!(refusal(&json(r#"["v"]"#, r#"["w"]"#), &["v"]).contains("does not have"));
}

#[test]
fn only_path_names_of_files_are_accepted() {
    let layout = |name: &str| {
        let file = LayoutFile {
            name: Some(name.to_owned()),
            metadata: None,
            tensors: Vec::new(),
        };
        Layout { files: vec![file] }.to_json()
    };
    for name in [
        "model.safetensors",
        "a b\u{1F9EE}.safetensors",
        "console.safetensors",
        "com.safetensors",
        "com10.safetensors",
        "com⁴.safetensors",
        " aux.safetensors",
        "vae/a.safetensors",
        "a b/c. d/e/f/g/h/i/j.safetensors",
        &format!("{}.safetensors", "x".repeat(255 - 12)),
    ] {
        assert!(Layout::parse(&layout(name), &[]).is_ok(), "{name}");
    }
    for name in [
        "",
        ".",
        "..",
        "model.bin",
        "model.SAFETENSORS",
        "model.safetensors ",
        "model.safetensors.",
        "/model.safetensors",
        "../model.safetensors",
        "a//b.safetensors",
        "a/../b.safetensors",
        "a/.b/c.safetensors",
        "a./b.safetensors",
        "a /b.safetensors",
        "con/b.safetensors",
        "a/nul.safetensors",
        "a.safetensors/b.safetensors",
        "a/b.Safetensors.Index.json/c.safetensors",
        "a/b/c/d/e/f/g/h/i.safetensors",
        "a\\b.safetensors",
        "C:a.safetensors",
        "a.safetensors\0",
        "a\0.safetensors",
        "a\n.safetensors",
        "a\u{7F}.safetensors",
        "a\u{9B}.safetensors",
        "con.safetensors",
        "NUL.safetensors",
        "prn.x.safetensors",
        "com0.safetensors",
        "com².safetensors",
        "conin$.safetensors",
        "Aux .safetensors",
        "com1.safetensors",
        "LPT9.safetensors",
        ".safetensors",
        "..safetensors",
        ".a.safetensors",
        &format!("{}.safetensors", "x".repeat(256 - 12)),
    ] {
        assert!(refusal(&layout(name), &[]).contains("file name"), "{name}");
    }
}

#[test]
fn file_names_differ_regarding_case_or_not() {
    let layout = |first: &str, second: &str| {
        let file = |name: &str| format!("{{\"name\":\"{name}\",\"metadata\":null,\"tensors\":[]}}");
        format!("{{\"files\":[{},{}]}}", file(first), file(second))
    };
    for (first, second) in [("a", "b"), ("Ä", "ä"), ("s", "ſ")] {
        let json = layout(
            &format!("{first}.safetensors"),
            &format!("{second}.safetensors"),
        );
        assert!(Layout::parse(&json, &[]).is_ok(), "{first} {second}");
    }
    assert!(refusal(&layout("A.safetensors", "a.safetensors"), &[]).contains("duplicate"));
    assert!(refusal(&layout("a.safetensors", "a.safetensors"), &[]).contains("order"));
    for (first, second) in [
        ("A/a", "a/b"),
        ("A/a/a", "a/b/a"),
        ("a/B/a", "a/b/b"),
        ("A/a/a", "a/b"),
    ] {
        let json = layout(
            &format!("{first}.safetensors"),
            &format!("{second}.safetensors"),
        );
        assert!(
            refusal(&json, &[]).contains("differ in case only"),
            "{first} {second}"
        );
    }
    for (first, second) in [("A/b", "B/a"), ("A/a/a", "B/A/a"), ("A", "a/a")] {
        let json = layout(
            &format!("{first}.safetensors"),
            &format!("{second}.safetensors"),
        );
        assert!(Layout::parse(&json, &[]).is_ok(), "{first} {second}");
    }
}

const PIPELINE: &str = r#"{"files":[{"name":"te/a.safetensors","metadata":null,"tensors":["te/x"]},{"name":"te/in/b.safetensors","metadata":null,"tensors":["te/in/x"]},{"name":"te/z.safetensors","metadata":null,"tensors":["te/y"]}]}"#;

#[test]
fn tensors_carry_the_folder_of_their_file() {
    let names = ["te/in/x", "te/x", "te/y"];
    let parsed = Layout::parse(PIPELINE, &tensors(&names)).unwrap();
    assert_eq!(parsed.to_json(), PIPELINE);
    assert_eq!(
        parsed.folders().into_iter().collect::<Vec<_>>(),
        ["te/", "te/in/"]
    );
    for (old, new) in [
        ("\"te/y\"", "\"y\""),
        ("\"te/in/x\"", "\"te/x\""),
        ("\"te/x\"", "\"TE/x\""),
    ] {
        assert!(PIPELINE.contains(old));
        assert!(!refusal(&PIPELINE.replacen(old, new, 1), &names).is_empty());
    }
    let one = r#"{"files":[{"name":"te/a.safetensors","metadata":null,"tensors":null}]}"#;
    assert_eq!(
        Layout::parse(one, &tensors(&["te/x"])).unwrap().to_json(),
        one
    );
    assert!(refusal(one, &["te/x", "x"]).contains("does not begin with the folder"));
    assert!(refusal(one, &["te"]).contains("does not begin with the folder"));
}

#[test]
fn added_tensors_go_to_the_longest_folder() {
    let before = Layout::parse(PIPELINE, &tensors(&["te/in/x", "te/x", "te/y"])).unwrap();
    let after = tensors(&["te/a", "te/in/a/b", "te/inner", "te/x"]);
    let carried = before.carried_over(&after).unwrap();
    let lists: Vec<_> = carried
        .files()
        .iter()
        .map(|file| file.tensors.join(" "))
        .collect();
    assert_eq!(lists, ["te/x", "te/in/a/b", "te/a te/inner"]);
    assert_eq!(
        Layout::metadata_value(&carried, Some(&before), &after),
        None
    );

    let homeless = tensors(&["te/x", "x"]);
    let error = before.carried_over(&homeless).unwrap_err();
    assert_eq!(
        (error.class(), error.rule()),
        (ErrorClass::Malformed, Some("R-LAY-01"))
    );
    // A link that states its layout may add such a tensor.
    let single = Layout::single_file(&homeless);
    assert_eq!(
        Layout::metadata_value(&single, Some(&before), &homeless),
        Some(single.to_json())
    );
}

#[test]
fn files_of_shards_keep_their_folders() {
    let file = |name: &str, tensor: &str| {
        let name = Some(name.to_owned()).filter(|name| !name.is_empty());
        LayoutFile {
            name,
            metadata: None,
            tensors: vec![tensor.to_owned()],
        }
    };
    let names = |files: &[LayoutFile]| -> Vec<String> {
        let joined = Layout::joined(files.iter()).unwrap();
        joined
            .files()
            .iter()
            .map(|file| format!("{} {}", file.name.as_deref().unwrap(), file.tensors[0]))
            .collect()
    };
    let same = [
        file("a/m.safetensors", "a/x"),
        file("b/m.safetensors", "b/x"),
        file("m.safetensors", "x"),
    ];
    assert_eq!(
        names(&same),
        [
            "a/m.safetensors a/x",
            "b/m.safetensors b/x",
            "m.safetensors x"
        ]
    );
    let clash = [
        file("a/m.safetensors", "a/x"),
        file("a/M.safetensors", "a/y"),
        file("", "x"),
        file("", "y"),
    ];
    let numbered = [
        "a/model-00001-of-00002.safetensors a/x",
        "a/model-00002-of-00002.safetensors a/y",
        "model-00001-of-00002.safetensors x",
        "model-00002-of-00002.safetensors y",
    ];
    assert_eq!(names(&clash), numbered);
}

#[test]
fn the_key_is_stated_only_where_needed() {
    let before = tensors(&["b", "c", "d"]);
    let json = r#"{"files":[{"name":"1.safetensors","metadata":{"k":"v"},"tensors":["b","d"]},{"name":"2.safetensors","metadata":null,"tensors":["c"]}]}"#;
    let base = Layout::parse(json, &before).unwrap();

    let after = tensors(&["a", "b", "c", "e"]);
    let carried = Layout::of_target(&BTreeMap::new(), Some(&base), &after).unwrap();
    assert_eq!(carried, base.carried_over(&after).unwrap());
    assert_eq!(
        carried.to_json(),
        r#"{"files":[{"name":"1.safetensors","metadata":{"k":"v"},"tensors":["b"]},{"name":"2.safetensors","metadata":null,"tensors":["a","c","e"]}]}"#
    );
    assert_eq!(Layout::metadata_value(&carried, Some(&base), &after), None);

    let single = Layout::single_file(&after);
    assert_eq!(
        Layout::of_target(&BTreeMap::new(), None, &after).unwrap(),
        single
    );
    assert_eq!(Layout::metadata_value(&single, None, &after), None);

    for (target, base) in [(&single, Some(&base)), (&carried, None)] {
        let json = Layout::metadata_value(target, base, &after).unwrap();
        let metadata = BTreeMap::from([(LAYOUT_KEY.to_owned(), json)]);
        assert_eq!(Layout::of_target(&metadata, base, &after).unwrap(), *target);
    }
}
