// Does with an SFTP server what programs do that use golang.org/x/crypto/ssh and github.com/pkg/sftp, and
// says what is not as it should be.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"path"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

func main() {
	log.SetFlags(log.Lshortfile)
	address := flag.String("address", "", "of the server")
	user := flag.String("user", "", "who logs in")
	key := flag.String("key", "", "their private key")
	hostKey := flag.String("host-key", "", "the server's public key")
	file := flag.String("file", "", "what is put")
	folder := flag.String("folder", "", "an empty folder at the server")
	flag.Parse()

	host, _, _, _, err := ssh.ParseAuthorizedKey(must(os.ReadFile(*hostKey)))
	check(err)
	signer := must(ssh.ParsePrivateKey(must(os.ReadFile(*key))))
	connection := must(ssh.Dial("tcp", *address, &ssh.ClientConfig{
		User:              *user,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback:   ssh.FixedHostKey(host),
		HostKeyAlgorithms: []string{host.Type()},
		Timeout:           20 * time.Second,
	}))
	defer connection.Close()
	client := must(sftp.NewClient(connection, sftp.UseConcurrentReads(true), sftp.UseConcurrentWrites(true)))
	defer client.Close()
	content := must(os.ReadFile(*file))
	at := func(name string) string { return path.Join(*folder, name) }

	// Many requests at once, both ways.
	put(client, at("file"), content)
	same(client, at("file"), content)
	many(client, at("file"), content)

	stat := must(client.Stat(at("file")))
	expect(stat.Size() == int64(len(content)) && stat.Mode().IsRegular(), stat)
	when := time.Unix(1_000_000_000, 0)
	check(client.Chtimes(at("file"), when, when))
	check(client.Chmod(at("file"), 0o640))
	stat = must(client.Stat(at("file")))
	expect(stat.ModTime().Equal(when) && stat.Mode().Perm() == 0o640, stat)

	check(client.MkdirAll(at("a/b")))
	check(client.Symlink(at("file"), at("a/link")))
	expect(must(client.ReadLink(at("a/link"))) == at("file"), "the link")
	expect(must(client.Lstat(at("a/link"))).Mode()&os.ModeSymlink != 0, "a link")
	expect(must(client.RealPath(at("a/link"))) == at("file"), "what it leads to")
	check(client.Link(at("file"), at("a/hard")))
	same(client, at("a/hard"), content)
	entries := must(client.ReadDir(at("a")))
	expect(len(entries) == 3, entries)
	expect(len(must(client.Glob(at("a/*")))) == 3, "a pattern")
	walked := 0
	for walker := client.Walk(*folder); walker.Step(); walked++ {
		check(walker.Err())
	}
	expect(walked == 6, walked)

	// Where nothing is, and over what is there.
	check(client.Rename(at("a/hard"), at("a/renamed")))
	put(client, at("a/b/other"), []byte("other"))
	expect(client.Rename(at("a/b/other"), at("a/renamed")) != nil, "replaced by the plain rename")
	check(client.PosixRename(at("a/b/other"), at("a/renamed")))
	same(client, at("a/renamed"), []byte("other"))
	check(client.Truncate(at("a/renamed"), 2))
	same(client, at("a/renamed"), []byte("ot"))

	files := must(client.StatVFS(*folder))
	expect(files.TotalSpace() > 0 && files.Namemax >= 255, files)
	expect(path.IsAbs(must(client.Getwd())), "home")

	_, err = client.Stat(at("nothing"))
	expect(os.IsNotExist(err), err)
	_, err = client.OpenFile(at("file"), os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	expect(err != nil, "created twice")

	check(client.Remove(at("file")))
	expect(client.RemoveDirectory(at("a")) != nil, "removed with what it holds")
	check(client.RemoveAll(at("a")))
	expect(len(must(client.ReadDir(*folder))) == 0, "what is left")
}

// put writes a file, has it brought to the disk, and asks for its size.
func put(client *sftp.Client, name string, content []byte) {
	file := must(client.Create(name))
	written := must(file.ReadFromWithConcurrency(bytes.NewReader(content), 64))
	expect(written == int64(len(content)), written)
	check(file.Sync())
	expect(must(file.Stat()).Size() == written, "its size by its handle")
	check(file.Close())
}

func same(client *sftp.Client, name string, content []byte) {
	file := must(client.Open(name))
	var back bytes.Buffer
	must(file.WriteTo(&back))
	check(file.Close())
	expect(bytes.Equal(back.Bytes(), content), name)
}

// many reads pieces of a file by one handle at once.
func many(client *sftp.Client, name string, content []byte) {
	file := must(client.Open(name))
	pieces := 16
	size := len(content) / pieces
	done := make(chan bool)
	for nth := range pieces {
		go func() {
			piece := make([]byte, size)
			n, err := file.ReadAt(piece, int64(nth*size))
			done <- err == nil && n == size && bytes.Equal(piece, content[nth*size:][:size])
		}()
	}
	for range pieces {
		expect(<-done, name)
	}
	check(file.Close())
}

func expect(good bool, what any) {
	if !good {
		log.Output(2, fmt.Sprint("not as it should be: ", what))
		os.Exit(1)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Output(2, err.Error())
		os.Exit(1)
	}
	return value
}

func check(err error) {
	if err != nil {
		log.Output(2, err.Error())
		os.Exit(1)
	}
}
