// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// host is a directory with all files that agent, patcher and init container find on a node. The
// files are an NRI runtime's socket, simulated GPUs and their driver, and directories to write to.
type host struct {
	t         *testing.T
	dir, node string
	probes    string // the address of the agent's probes
	runtime   *adaptation.Adaptation
	agent     *running
	first     []string // the command of the node's first process, if it is not the machine's
}

// at returns the path of a directory of the host.
func (h *host) at(name string) string { return filepath.Join(h.dir, name) }

const built = "../../../build"

// hosts counts the hosts.
var hosts atomic.Uint32

func newHost(t *testing.T) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "host") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the patcher is not root
		t.Fatal(err)
	}
	h := &host{t: t, dir: dir, node: unique("host")}
	t.Cleanup(func() { os.RemoveAll(dir) })
	gpusim, err := filepath.Abs(filepath.Join(built, "gpusim"))
	if err != nil {
		t.Fatal(err)
	}
	const script = `set -e; cd "$0"
mkdir run state opt plugins nri pod-resources cdi-gpus cdi-ours dev config token driver driver/lib container node
cp "$1"/drivers/future/lib*.so.1 driver/lib
"$1/gpusim" create --gpus 1 --memory 17179869184 dev/gpusim
"$1/gpusim" cdi --driver-dir "$1" --device-dir "$0/dev/gpusim" >cdi-gpus/nvidia.yaml`
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", script, dir, gpusim).CombinedOutput(); err != nil {
		t.Fatalf("make a host: %v: %s", err, out)
	}
	ports, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	// Another process may take a port before the host uses the port. An address stays free.
	number := hosts.Add(1)
	loopback := fmt.Sprintf("127.1.%d.%d", number>>8, number&0xff)
	h.probes = fmt.Sprintf("http://%s:%d/readyz", loopback, ports[1])
	text := fmt.Sprintf(`http = {address = "%[5]s:%[1]d", probe_address = "%[5]s:%[2]d"}
driver.nvml_library = "%[3]s/driver/lib/libnvidia-ml.so.1"
injection = {cdi_spec_dirs = ["%[3]s/cdi-gpus", "%[3]s/cdi-ours"], cdi_output_dir = "%[3]s/cdi-ours"}
nri.socket_path = "%[3]s/nri/nri.sock"
guard.plugin_dir = "%[3]s/plugins"
paths = {install_dir = "%[3]s/opt", run_dir = "%[3]s/run", state_dir = "%[3]s/state", pod_resources_dir = "%[3]s/pod-resources"}
sharing.mps = {control_program = "%[4]s", shm_size_mib = 16}
`, ports[0], ports[1], dir, h.mpsProgram(), loopback)
	if err := os.WriteFile(h.at("config/config.toml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return h
}

// configure adds a line to the configuration.
func (h *host) configure(line string) {
	h.t.Helper()
	file, err := os.OpenFile(h.at("config/config.toml"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = fmt.Fprintln(file, line)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// These names stand for missing privileges that are not directories of the host.
const (
	network    = "the host's network"
	hostPID    = "the host's process namespace"
	privileged = "privileged"
	root       = "root"
)

// unprivileged are the capabilities that a runtime leaves to root in an unprivileged container.
const unprivileged = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap," +
	"+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap"

// nonRoot is the user under which the manifest runs programs that need no root.
const nonRoot = 65532

// ownProcesses are options of unshare for a process namespace, which ends with its first program.
var ownProcesses = []string{"--pid", "--fork", "--kill-child"}

// start runs one of our programs as a user, without one of the host's directories or privileges,
// until the test ends.
func (h *host) start(missing string, user int, name string, args ...string) *running {
	h.t.Helper()
	if missing == hostPID {
		return h.startIn(slices.Concat(ownProcesses, []string{"--mount-proc"}), ":", missing, user, name, args...)
	}
	return h.startIn(nil, ":", missing, user, name, args...)
}

// startIn runs a program in separate namespaces, which the shell commands in prepare prepare.
func (h *host) startIn(namespaces []string, prepare, missing string, user int, name string, args ...string) *running {
	h.t.Helper()
	program, err := filepath.Abs(filepath.Join(built, "bin", name))
	if err != nil {
		h.t.Fatal(err)
	}
	namespaces = slices.Concat([]string{"--mount", "--propagation", "private"}, namespaces)
	var bounds []string
	hide := ":"
	switch missing {
	case "", hostPID:
	case root:
		user = nonRoot
	case network:
		namespaces = append(namespaces, "--net")
	case privileged:
		bounds = []string{"--bounding-set", unprivileged}
	default:
		hide = `mount -t tmpfs -o ro,size=4k none "$0"`
	}
	script := strings.Join([]string{hide, prepare, `exec "$@"`}, " && ")
	return h.launch("unshare", slices.Concat(namespaces, []string{"--", "sh", "-c", script, h.at(missing),
		"setpriv", "--reuid", fmt.Sprint(user), "--regid", fmt.Sprint(user), "--clear-groups"}, bounds, []string{program}, args)...)
}

// launch starts a program, and kills the program when the test ends.
func (h *host) launch(name string, args ...string) *running {
	h.t.Helper()
	r := &running{ended: make(chan struct{})}
	command := slices.Concat(h.first, []string{name}, args)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "NODE_NAME="+h.node, "GPUSIM_STATE="+h.at("dev/gpusim/state"), "NODE="+h.at("node"), "USAGE="+paths.Usage(h.at("run")), "PIPES="+paths.MPSPipes(h.at("run")))
	cmd.Stdout, cmd.Stderr = &r.log, &r.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	r.process = cmd.Process
	go func() {
		r.err = cmd.Wait()
		close(r.ended)
	}()
	h.t.Cleanup(r.kill)
	return r
}

// asFirst makes programs start through the first process of a node with separate process and mount
// namespaces. The first process runs a shell script with the program as arguments.
func (h *host) asFirst(script string) {
	h.first = slices.Concat([]string{"unshare", "--mount", "--propagation", "private"}, ownProcesses,
		[]string{"--mount-proc", "--", "sh", "-c", script, h.mpsProgram()})
}

// running is a started program. When the program has ended, err is set and ended is closed.
type running struct {
	log     bytes.Buffer
	err     error
	process *os.Process
	ended   chan struct{}
}

func (r *running) kill() {
	_ = r.process.Kill() // the process may have ended
	<-r.ended
}

// wait waits for a program that ends by itself, and returns its result.
func (r *running) wait() error {
	<-r.ended
	if r.err != nil {
		return fmt.Errorf("%w: %s", r.err, r.log.String())
	}
	return nil
}

// account writes a kubeconfig with the token of a service account.
func (h *host) account(name string) string {
	h.t.Helper()
	cfg, err := credentials(h.t.Context(), plane.admin, name, h.node)
	if err != nil {
		h.t.Fatal(err)
	}
	path := h.at("token/kubeconfig")
	writeKubeconfig(h.t, cfg, path)
	if err := os.Chmod(path, 0o644); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// container starts a process as a runtime does, with a separate root that contains the mounts. The
// agent sees the sources of the mounts.
func (h *host) container(mounts []*api.Mount) (pid int, err error) {
	const script = `set -e; dir=$0
mount -t tmpfs none "$dir"
mkdir "$dir/upper" "$dir/work" "$dir/root"
mount -t overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" none "$dir/root"
while [ $# -gt 0 ]; do
	to=$dir/root$2
	if [ -d "$1" ]; then mkdir -p "$to"; else mkdir -p "${to%/*}"; touch "$to"; fi
	mount --bind "$1" "$to"
	shift 2
done
exec chroot "$dir/root" sleep infinity`
	args := []string{"--target", fmt.Sprint(h.agent.process.Pid), "--mount", "--",
		"unshare", "--mount", "--propagation", "private", "--", "sh", "-c", script, h.at("container")}
	for _, m := range mounts {
		if m.GetType() == "bind" {
			args = append(args, m.GetSource(), m.GetDestination())
		}
	}
	r := h.launch("nsenter", args...)
	command := fmt.Sprintf("/proc/%d/cmdline", r.process.Pid)
	err = eventually.Wait(symptom, "the container's root is made", func() bool {
		line, err := os.ReadFile(command)
		return err == nil && bytes.HasPrefix(line, []byte("sleep\x00"))
	})
	if err != nil {
		r.kill()
		err = errors.Join(err, r.wait())
	}
	return r.process.Pid, err
}
