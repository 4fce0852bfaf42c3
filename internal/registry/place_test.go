// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"strings"
	"testing"
)

const (
	uid   = "0fa3c2d1-1111-2222-3333-444455556666"
	other = "9fa3c2d1-1111-2222-3333-444455556666"
)

var (
	id      = strings.Repeat("0123abcd", 8)
	otherID = strings.Repeat("89ef4567", 8)
)

func TestParseCgroups(t *testing.T) {
	underscored := strings.ReplaceAll(uid, "-", "_")
	tests := []struct {
		name, content  string
		pod, container string
	}{
		{"v2, cgroupfs", "0::/kubepods/besteffort/pod" + uid + "/" + id + "\n", uid, id},
		{"v2, guaranteed", "0::/kubepods/pod" + uid + "/" + id + "\n", uid, id},
		{"v2, systemd", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underscored + ".slice/cri-containerd-" + id + ".scope\n", uid, id},
		{"v2, systemd, guaranteed", "0::/kubepods.slice/kubepods-pod" + underscored + ".slice/cri-containerd-" + id + ".scope", uid, id},
		{"CRI-O", "0::/kubepods.slice/kubepods-pod" + underscored + ".slice/crio-" + id + ".scope/container\n", uid, id},
		{"a static pod", "0::/kubepods/pod" + strings.Repeat("ab", 16) + "/" + id, strings.Repeat("ab", 16), id},
		{"a root of kubelet's own", "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + underscored + ".slice/cri-containerd-" + id + ".scope", uid, id},
		{"a node in a cgroup", "0::/local/node/kubepods/burstable/pod" + uid + "/" + id, uid, id},
		{"v1", "12:pids:/kubepods/pod" + uid + "/" + id + "\n3:cpu,cpuacct:/kubepods/pod" + uid + "/" + id + "\n", uid, id},
		{"v1 and v2", "12:pids:/kubepods/pod" + uid + "/" + id + "\n1:name=systemd:/\n0::/\n", uid, id},
		{"from a namespace beside it", "0::/../../kubepods-pod" + underscored + ".slice/cri-containerd-" + id + ".scope", uid, id},
		{"a cgroup that the container made", "0::/kubepods/pod" + uid + "/" + id + "/kubepods/pod" + other + "/" + otherID, uid, id},
		{"a pod's own cgroup", "0::/kubepods/pod" + uid, uid, ""},
		{"CRI-O's monitor", "0::/kubepods.slice/kubepods-pod" + underscored + ".slice/crio-conmon-" + id + ".scope", uid, ""},
		{"two pods at once", "2:cpu:/kubepods/pod" + uid + "/" + id + "\n1:pids:/kubepods/pod" + other + "/" + otherID, "", ""},
		{"the host", "0::/user.slice/user-0.slice/session-1.scope", "", ""},
		{"another runtime", "0::/docker/" + id, "", ""},
		{"a pod's name alone", "0::/pod" + uid + "/" + id, "", ""},
		{"the root", "0::/", "", ""},
		{"nothing", "", "", ""},
		{"after a line that is none", "?\n0::/kubepods/pod" + uid + "/" + id + "\n", uid, id},
		{"after the host's line", "2:cpu:/\n1:pids:/kubepods/pod" + uid + "/" + id + "\n", uid, id},
		{"no lines of a cgroup file", "pod" + uid + "\n::\n:", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ParseCgroups(tt.content)
			if got.PodUID != tt.pod || got.Container != tt.container {
				t.Errorf("got pod %q, container %q", got.PodUID, got.Container)
			}
		})
	}
}
