use super::*;

fn route(target: &str, via: Option<&str>) -> Result<Option<RelayRoute>, CommandError> {
    let mut args = RelayArgs {
        targets: target.split_whitespace().map(str::to_owned).collect(),
        ..RelayArgs::default()
    };
    args.pair.via = via.map(str::to_owned);
    RelayRoute::of(&args)
}

#[test]
fn a_url_is_the_last_host_of_via() {
    let shown = |target, via| {
        let route = route(target, via).unwrap().unwrap();
        let hosts: Vec<_> = route.hosts.iter().map(ToString::to_string).collect();
        (hosts.join(" "), route.target)
    };
    let of = |hosts: &str, target: &str| (hosts.to_owned(), target.to_owned());
    assert_eq!(
        shown("ssh://far/localhost:22", None),
        of("far", "localhost:22")
    );
    assert_eq!(
        shown("jp1:22", Some("a,me@b:2222")),
        of("a me@b:2222", "jp1:22")
    );
    assert_eq!(
        shown("ssh://far/unix:/run/x", Some("a")),
        of("a far", "unix:/run/x")
    );
    assert_eq!(
        route("ssh://f/h:1/proxy", None).unwrap().unwrap().words,
        ["proxy"]
    );
    assert!(route("far:22", None).unwrap().is_none());
}

#[test]
fn ways_that_cannot_be() {
    for (target, via) in [
        ("ssh://far", None),
        ("ssh://far/", None),
        ("ssh:///h:22", None),
        ("ssh://-oProxyCommand=x/h:22", None),
        ("ssh://far/h:22/tls", None),
        ("ssh://a/h:22 ssh://b/h:22", None),
        ("", Some("a")),
        ("h:22", Some("a,,b")),
        ("h:22", Some("a,b,c,d,e,f,g,h,i")),
    ] {
        assert!(route(target, via).is_err(), "{target} {via:?}");
    }
}
