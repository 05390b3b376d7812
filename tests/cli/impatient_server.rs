//! A server that disconnects if a channel is opened together with authentication: the client
//! connects again and does one step after another.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use longhaul_tests::Client;
use ssh::key::PrivateKey;
use testkit::sftp_model::{Fs, SftpModel, SftpServerProfile};
use testkit::sshd_model::{SshdModel, SshdModelSettings};
use testkit::tree::write_file;
use testkit::{Seed, wait};

/// Time without input after which everything has arrived that a client sends at once.
const FLIGHT: Duration = Duration::from_millis(30);
const SIZE: usize = 100_000;

/// Serves one connection; returns the content of the uploaded file.
fn serve(mut stream: TcpStream, config: SshdModelSettings) -> Option<Vec<u8>> {
    let mut model = SshdModel::new(
        config,
        SftpModel::new(Fs::default(), SftpServerProfile::openssh()),
        7,
    );
    stream.set_nodelay(true).expect("an option");
    let mut part = vec![0; 1 << 20];
    loop {
        while let Some(bytes) = model.poll_write() {
            stream.write_all(&bytes).ok()?;
        }
        let copied = || model.sftp.fs.data("copy").map(<[u8]>::to_vec);
        if model.error().is_some() {
            return copied();
        }
        let Ok(n @ 1..) = stream.read(&mut part) else {
            return copied();
        };
        let mut all = part[..n].to_vec();
        if !model.is_authenticated() {
            while wait::readable(&stream, FLIGHT)
                && let Ok(n @ 1..) = stream.read(&mut part)
            {
                all.extend_from_slice(&part[..n]);
            }
        }
        model.handle_input(Instant::now(), &all);
    }
}

#[test]
fn it_is_tried_again_step_by_step() {
    let client = Client::new();
    if client.is_scp() {
        return;
    }
    for (impatient, connections) in [(true, 2), (false, 1)] {
        let key = Arc::new(PrivateKey::from_ed25519_seed(&[1; 32]).expect("a key"));
        let config = SshdModelSettings {
            impatient,
            ..SshdModelSettings::openssh(key, Vec::new())
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let accepted = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&accepted);
        // The thread ends with the test.
        let server = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                if let Some(data) = serve(stream, config.clone()) {
                    return data;
                }
            }
            Vec::new()
        });
        let folder = longhaul_tests::scratch();
        let content = Seed::new(3).bytes(SIZE);
        write_file(&folder.path().join("file"), &content);
        let text = format!(
            "Host peer\nHostName 127.0.0.1\nPort {port}\nUser u\nIdentityFile {}\n\
             IdentitiesOnly yes\nUserKnownHostsFile {}\nStrictHostKeyChecking accept-new\n\
             BatchMode yes\n",
            client.dir.key().private.display(),
            folder.path().join("known_hosts").display()
        );
        write_file(&folder.path().join("config"), text.as_bytes());
        let longhaul = client.dir.run(longhaul_tests::longhaul());
        let run = longhaul.args(["cp", "-vv", "--connections=1", "-F"]);
        let run = run.arg(folder.path().join("config"));
        let run = run.arg(folder.path().join("file")).arg("peer:copy");
        let outcome = run.timeout(Duration::from_secs(30)).run().expect_code(0);
        let again = outcome
            .err()
            .contains("connecting again without sending ahead of the server's answers");
        assert_eq!(again, impatient, "{outcome}");
        assert_eq!(accepted.load(Ordering::SeqCst), connections, "{outcome}");
        let copied = server.join().expect("no panic");
        assert!(copied == content, "{} bytes\n{outcome}", copied.len());
    }
}

/// The client shows lines that a server sends before its identification (RFC 4253 section 4.2),
/// such as "Exceeded MaxStartups". They were read and never shown.
#[test]
fn why_a_server_lets_nobody_in_is_said() {
    let client = Client::new();
    if client.is_scp() {
        return;
    }
    for (says, shown) in [
        (
            "Exceeded MaxStartups\r\n",
            "too many logins at once at the server (MaxStartups",
        ),
        (
            "Hello\r\nToo many\x1b[2J users",
            "its last message: Hello; Too many\\x1b[2J users",
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("a port").port().to_string();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                // Everything that the client sends is read: a reset could overtake the message.
                let _ = stream.write_all(says.as_bytes());
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            }
        });
        let cp = client
            .cp()
            .args(["-P", &port, "127.0.0.1:file", "/dev/null"]);
        cp.run().expect_code(255).expect_err(&[shown]);
    }
}
