// An SSH server with SFTP around golang.org/x/crypto/ssh and github.com/pkg/sftp, for the tests.
// Serves the whole file system.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strings"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

type repeated []string

func (r *repeated) String() string     { return strings.Join(*r, ",") }
func (r *repeated) Set(v string) error { *r = append(*r, v); return nil }

var errNo = errors.New("no")

func main() {
	var hostKeys, hostCertificates repeated
	flag.Var(&hostKeys, "host-key", "private key file, repeatable")
	flag.Var(&hostCertificates, "host-certificate", "certificate file, repeatable")
	authorized := flag.String("authorized-keys", "", "file")
	authority := flag.String("user-authority", "", "public key file")
	home := flag.String("home", "/", "where relative paths start")
	password := flag.String("password", "", "the password")
	auth := flag.String("auth", "publickey", "methods in sequence")
	ciphers := flag.String("ciphers", "", "the only ones offered")
	kex := flag.String("kex", "", "the only ones offered")
	macs := flag.String("macs", "", "the only ones offered")
	rekey := flag.Uint64("rekey-bytes", 0, "start a new key exchange after so many bytes")
	flag.String("sftp-server", "", "ignored: pkg/sftp is the server")
	flag.Parse()

	config := &ssh.ServerConfig{MaxAuthTries: 20}
	config.Ciphers = names(*ciphers)
	config.KeyExchanges = names(*kex)
	config.MACs = names(*macs)
	config.RekeyThreshold = *rekey
	known := keysIn(*authorized)
	checker := &ssh.CertChecker{
		IsUserAuthority: func(key ssh.PublicKey) bool {
			return *authority != "" && holds(keysIn(*authority), key)
		},
		UserKeyFallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if holds(known, key) {
				return nil, nil
			}
			return nil, errNo
		},
	}
	interactive := func(_ ssh.ConnMetadata, ask ssh.KeyboardInteractiveChallenge) (*ssh.Permissions, error) {
		answers, err := ask("Test", "Please answer.", []string{"Secret: "}, []bool{false})
		if err != nil || len(answers) != 1 || answers[0] != *password {
			return nil, errNo
		}
		return nil, nil
	}
	switch *auth {
	case "publickey":
		config.PublicKeyCallback = checker.Authenticate
	case "password":
		config.PasswordCallback = func(_ ssh.ConnMetadata, given []byte) (*ssh.Permissions, error) {
			if string(given) != *password {
				return nil, errNo
			}
			return nil, nil
		}
	case "keyboard-interactive":
		config.KeyboardInteractiveCallback = interactive
	case "publickey,keyboard-interactive":
		config.PublicKeyCallback = func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if _, err := checker.Authenticate(meta, key); err != nil {
				return nil, err
			}
			return nil, &ssh.PartialSuccessError{
				Next: ssh.ServerAuthCallbacks{KeyboardInteractiveCallback: interactive},
			}
		}
	default:
		log.Fatalf("--auth %s is not known", *auth)
	}
	for i, file := range hostKeys {
		signer := must(ssh.ParsePrivateKey(must(os.ReadFile(file))))
		if i < len(hostCertificates) {
			public, _, _, _, err := ssh.ParseAuthorizedKey(must(os.ReadFile(hostCertificates[i])))
			check(err)
			config.AddHostKey(must(ssh.NewCertSigner(public.(*ssh.Certificate), signer)))
		}
		config.AddHostKey(signer)
	}

	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	fmt.Println("LISTENING", listener.Addr().(*net.TCPAddr).Port)
	for {
		go serve(must(listener.Accept()), config, *home)
	}
}

func serve(socket net.Conn, config *ssh.ServerConfig, home string) {
	defer socket.Close()
	_, channels, requests, err := ssh.NewServerConn(socket, config)
	if err != nil {
		log.Printf("handshake: %v", err)
		return
	}
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		if offered.ChannelType() != "session" {
			offered.Reject(ssh.UnknownChannelType, "only sessions")
			continue
		}
		channel, requests, err := offered.Accept()
		if err != nil {
			log.Printf("channel: %v", err)
			return
		}
		go session(channel, requests, home)
	}
}

func session(channel ssh.Channel, requests <-chan *ssh.Request, home string) {
	for request := range requests {
		good := request.Type == "subsystem" && bytes.HasSuffix(request.Payload, []byte("sftp"))
		request.Reply(good, nil)
		if !good {
			continue
		}
		go func() {
			server, err := sftp.NewServer(channel, sftp.WithServerWorkingDirectory(home))
			if err == nil {
				err = server.Serve()
			}
			status := byte(0)
			if err != nil && err != io.EOF {
				log.Printf("sftp: %v", err)
				status = 1
			}
			channel.SendRequest("exit-status", false, []byte{0, 0, 0, status})
			channel.Close()
		}()
	}
}

func keysIn(file string) (keys []ssh.PublicKey) {
	rest := must(os.ReadFile(file))
	for len(bytes.TrimSpace(rest)) > 0 {
		key, _, _, more, err := ssh.ParseAuthorizedKey(rest)
		check(err)
		keys, rest = append(keys, key), more
	}
	return keys
}

func holds(keys []ssh.PublicKey, wanted ssh.PublicKey) bool {
	for _, key := range keys {
		if bytes.Equal(key.Marshal(), wanted.Marshal()) {
			return true
		}
	}
	return false
}

func names(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
