// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// hung is the server of a FUSE file system with a root directory. The server answers no request
// about the content, like a network file system whose server is down.
type hung struct {
	fd int
	// file reports whether the root is a file. Then the server reports each read of the file on standard
	// output, and does not answer the read.
	file bool
}

func openServer() (hung, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return hung{}, fmt.Errorf("open /dev/fuse: %w", err)
	}
	return hung{fd: fd}, nil
}

// mount mounts the file system. The mount ends with the process.
func (h hung) mount(dir string) error {
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0,allow_other", h.fd, h.mode())
	if err := unix.Mount("hung", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount at %s: %w", dir, err)
	}
	go h.serve()
	return nil
}

// Hang mounts a file system that hangs on a directory, until the test ends or free is called.
// Waiting processes then get an error.
func Hang(t testing.TB, dir string) (free func()) {
	t.Helper()
	// A separate process mounts the file system, because a process that hangs in the file system
	// could not end the mount.
	child, _, output := startSelf(t, hangVariable, dir, 0)
	if line, err := output.ReadString('\n'); err != nil || line != "ok\n" {
		t.Fatalf("mount a file system at %s: %s%v", dir, line, err)
	}
	free = sync.OnceFunc(func() {
		_ = unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH)
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	t.Cleanup(free)
	return free
}

// hang is the main function of the process that Hang starts.
func hang(dir string) error {
	server, err := openServer()
	if err != nil {
		return err
	}
	if err := server.mount(dir); err != nil {
		return err
	}
	fmt.Println("ok")
	select {}
}

// These are constants of the kernel's requests and our answers, from the protocol of
// <linux/fuse.h>.
const (
	fuseGetattr = 3
	fuseOpen    = 14
	fuseRead    = 15
	fuseInit    = 26
	fuseAccess  = 34

	headerSize = 16 // of an answer
)

func (h hung) serve() {
	request := make([]byte, 1<<20)
	for {
		n, err := unix.Read(h.fd, request)
		if err != nil || n < 40 {
			_ = unix.Close(h.fd)
			return
		}
		var body []byte
		var failed int32
		switch binary.LittleEndian.Uint32(request[4:]) {
		case fuseInit:
			body = make([]byte, 64)
			binary.LittleEndian.PutUint32(body, 7)
			binary.LittleEndian.PutUint32(body[4:], 31)
			binary.LittleEndian.PutUint32(body[20:], 4096) // largest write
		case fuseGetattr:
			body = make([]byte, 104)
			binary.LittleEndian.PutUint64(body[16:], 1)    // number
			binary.LittleEndian.PutUint64(body[24:], 4096) // size
			binary.LittleEndian.PutUint32(body[76:], h.mode())
			binary.LittleEndian.PutUint32(body[80:], 2) // links
		case fuseAccess:
			failed = -int32(unix.ENOSYS)
		case fuseOpen:
			if !h.file {
				continue
			}
			body = make([]byte, 16)
		case fuseRead:
			fmt.Println("ok")
			continue
		default:
			continue
		}
		h.answer(request[8:16], failed, body)
	}
}

func (h hung) answer(unique []byte, failed int32, body []byte) {
	answer := make([]byte, headerSize, headerSize+len(body))
	binary.LittleEndian.PutUint32(answer, uint32(headerSize+len(body)))
	binary.LittleEndian.PutUint32(answer[4:], uint32(failed))
	copy(answer[8:], unique)
	_, _ = unix.Write(h.fd, append(answer, body...))
}

func (h hung) mode() uint32 {
	if h.file {
		return unix.S_IFREG | 0o644
	}
	return unix.S_IFDIR | 0o755
}

// Hold makes a process that writes to a file, from memory in a file system that hangs. The kernel holds
// the lock of the file's inode during the write, until the test ends.
func Hold(t testing.TB, path string) {
	t.Helper()
	source := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(source, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	child, _, output := startSelf(t, holdVariable, source+"\n"+path, 0)
	if line, err := output.ReadString('\n'); err != nil || line != "ok\n" {
		t.Fatalf("write to %s: %s%v", path, line, err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(source, unix.MNT_FORCE|unix.MNT_DETACH)
		_ = child.Process.Kill()
		_ = child.Wait()
	})
}

// hold is the main function of the process that Hold starts.
func hold(arg string) error {
	source, path, _ := strings.Cut(arg, "\n")
	server, err := openServer()
	if err != nil {
		return err
	}
	server.file = true
	if err := server.mount(source); err != nil {
		return err
	}
	from, err := unix.Open(source, unix.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", source, err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(from, &stat); err != nil { // the kernel reads the size of the file
		return fmt.Errorf("stat %s: %w", source, err)
	}
	memory, err := unix.Mmap(from, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("map %s: %w", source, err)
	}
	to, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	_, err = unix.Write(to, memory[:64])
	return fmt.Errorf("write to %s: %w", path, err)
}
