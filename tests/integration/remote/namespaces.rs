//! Network namespaces, in which a coordinator and workers have networks of their own.

use crate::support::sheltered;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Namespaces of a coordinator and of workers. Each worker has a link to the coordinator's namespace, which passes on
/// what workers send to each other.
pub struct Namespaces {
    coordinator: String,
    workers: Vec<Host>,
}

/// The namespace of a worker, and its address there.
pub struct Host {
    pub namespace: String,
    pub address: String,
}

impl Namespaces {
    /// Makes namespaces for `count` workers. Reports a skip and returns `None` if this process may not do so.
    pub fn new(count: usize) -> Option<Self> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let first = format!("ragtag-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let host = |at| Host { namespace: format!("{first}-{at}"), address: format!("10.77.{at}.2") };
        let all = Self { coordinator: first.clone(), workers: (1..=count).map(host).collect() };
        match all.connect() {
            Ok(()) => Some(all),
            Err(why) => {
                test_support::skip!("network namespaces", "{why}");
                None
            }
        }
    }

    fn connect(&self) -> Result<(), String> {
        let own = &self.coordinator;
        ip(&format!("netns add {own}"))?;
        ip(&format!("-n {own} link set lo up"))?;
        for (at, Host { namespace, address }) in self.workers.iter().enumerate() {
            let gateway = format!("10.77.{}.1", at + 1);
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
            ip(&format!("link add worker{at} netns {own} type veth peer name eth0 netns {namespace}"))?;
            ip(&format!("-n {own} addr add {gateway}/24 dev worker{at}"))?;
            ip(&format!("-n {own} link set worker{at} up"))?;
            ip(&format!("-n {namespace} addr add {address}/24 dev eth0"))?;
            ip(&format!("-n {namespace} link set eth0 up"))?;
            ip(&format!("-n {namespace} route add default via {gateway}"))?;
        }
        let forwards = ["netns", "exec", own, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"];
        run(&forwards)
    }

    /// Returns the namespace of a worker, counted from 0.
    pub fn worker(&self, at: usize) -> &Host {
        &self.workers[at]
    }

    /// Returns the `ragtag` command in the coordinator's namespace.
    pub fn ragtag(&self) -> assert_cmd::Command {
        sheltered(self.command().into())
    }

    /// Returns this command without [`sheltered`].
    pub fn command(&self) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.coordinator, env!("CARGO_BIN_EXE_ragtag")]);
        command
    }
}

impl Host {
    /// Takes the link down. Both ends of a connection still wait for bytes.
    pub fn disconnect(&self) {
        ip(&format!("-n {} link set eth0 down", self.namespace)).unwrap();
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in self.workers.iter().map(|host| &host.namespace).chain([&self.coordinator]) {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Runs `ip` with arguments without spaces.
fn ip(arguments: &str) -> Result<(), String> {
    run(&arguments.split(' ').collect::<Vec<_>>())
}

fn run(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|cause| format!("ip: {cause}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr))),
    }
}
