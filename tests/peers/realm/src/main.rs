//! `realm-relay LISTEN TARGET`, both as ADDRESS:PORT: one endpoint of realm with the defaults of
//! its own program (plain TCP, splice through pipes of 16 pages, one thread per core).

use realm_core::endpoint::{BindOpts, ConnectOpts, RelayEndpoint, RemoteAddr};
use realm_core::tcp::run_tcp;

fn main() {
    let mut words = std::env::args().skip(1);
    let mut address = || {
        let text = words.next().expect("LISTEN TARGET");
        text.parse().expect("ADDRESS:PORT")
    };
    let endpoint = RelayEndpoint {
        laddr: address(),
        raddr: RemoteAddr::SocketAddr(address()),
        bind_opts: BindOpts::default(),
        conn_opts: ConnectOpts::default(),
        extra_raddrs: Vec::new(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("threads");
    runtime.block_on(run_tcp(endpoint)).expect("it relays");
}
