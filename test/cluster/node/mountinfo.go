// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// A mount is one line of /proc/self/mountinfo.
type mount struct {
	point, fsType, options string
	// superOptions are the options of the file system. For cgroup v1, the options name the
	// controllers.
	superOptions []string
}

func readMounts() ([]mount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	return parseMounts(f)
}

func parseMounts(r io.Reader) ([]mount, error) {
	var mounts []mount
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		before, after, found := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !found || len(left) < 6 || len(right) < 3 {
			return nil, fmt.Errorf("mountinfo has the line %q, which is none", lines.Text())
		}
		mounts = append(mounts, mount{
			point:        unescape(left[4]),
			options:      left[5],
			fsType:       right[0],
			superOptions: strings.Split(right[2], ","),
		})
	}
	return mounts, lines.Err()
}

// unescape decodes the kernel's octal escapes of blanks in paths.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// kernelFileSystems are file systems that contain no files of the machine.
var kernelFileSystems = map[string]bool{
	"autofs": true, "binfmt_misc": true, "bpf": true, "cgroup": true, "cgroup2": true,
	"configfs": true, "debugfs": true, "devpts": true, "devtmpfs": true, "efivarfs": true,
	"fusectl": true, "hugetlbfs": true, "mqueue": true, "nsfs": true, "proc": true,
	"pstore": true, "rpc_pipefs": true, "securityfs": true, "sysfs": true, "tracefs": true,
}

// freshDirs are directories that a node mounts anew. The node takes over no mount of the machine
// below freshDirs.
var freshDirs = []string{"/dev", "/proc", "/run", "/sys", "/tmp", "/var/run"}

// extraMounts returns the mounts whose files a node needs, except the root. Examples are a separate
// /usr, and a GPU driver's libraries in a container. extraMounts omits mounts below the cleared
// paths.
func extraMounts(mounts []mount, cleared []string) []mount {
	var extra []mount
	for _, m := range mounts {
		if m.point != "/" && !kernelFileSystems[m.fsType] && !belowAny(m.point, freshDirs) && !belowAny(m.point, cleared) {
			extra = append(extra, m)
		}
	}
	return extra
}

func belowAny(path string, dirs []string) bool {
	for _, d := range dirs {
		if path == d || strings.HasPrefix(path, d+"/") {
			return true
		}
	}
	return false
}
