// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const hybridMounts = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw,relatime shared:2 - proc proc rw
24 22 0:22 / /sys rw,relatime shared:3 - sysfs sysfs rw
25 24 0:23 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
26 25 0:24 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
27 25 0:25 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/x,name=systemd
28 25 0:26 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
29 22 254:1 / /usr rw,relatime - ext4 /dev/vdb rw
30 22 254:2 / /mnt/a\040b rw,relatime - xfs /dev/vdc rw
31 22 0:27 / /run rw - tmpfs tmpfs rw
32 31 0:28 / /run/user rw - tmpfs tmpfs rw
33 22 254:0 /x /etc/resolv.conf rw - ext4 /dev/vda rw
34 25 0:24 / /mnt/again rw,relatime - cgroup cgroup rw,cpu,cpuacct
`

func parsed(t *testing.T) []mount {
	t.Helper()
	mounts, err := parseMounts(strings.NewReader(hybridMounts))
	if err != nil {
		t.Fatal(err)
	}
	return mounts
}

func TestHierarchies(t *testing.T) {
	want := []hierarchy{
		{root: "/sys/fs/cgroup/cpu,cpuacct", options: "cpu,cpuacct"},
		{root: "/sys/fs/cgroup/systemd", options: "name=systemd"},
		{root: "/sys/fs/cgroup/unified", v2: true},
	}
	if diff := cmp.Diff(want, hierarchies(parsed(t)), cmp.AllowUnexported(hierarchy{})); diff != "" {
		t.Errorf("hierarchies (-want +got):\n%s", diff)
	}
}

func TestExtraMounts(t *testing.T) {
	var points []string
	for _, m := range extraMounts(parsed(t), []string{"/etc/resolv.conf"}) {
		points = append(points, m.point)
	}
	if diff := cmp.Diff([]string{"/usr", "/mnt/a b"}, points); diff != "" {
		t.Errorf("mounts that a node takes over (-want +got):\n%s", diff)
	}
}

func TestParseMountsRefusesNonsense(t *testing.T) {
	if _, err := parseMounts(strings.NewReader("not a mount\n")); err == nil {
		t.Error("no error")
	}
}
