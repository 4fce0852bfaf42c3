// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/usagefs"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// uninstall runs the container that cleans a node. The node has a remaining usage page.
func (h *host) uninstall(missing string) error {
	if err := h.install(""); err != nil {
		return err
	}
	usage := paths.Usage(h.at("run"))
	h.t.Cleanup(func() { _ = usagefs.Remove(usage) })
	page, err := usagefs.New(usage, limits.UsageFile, limits.UsageBytes).Make("a-pod", "main")
	if err != nil {
		return err
	}
	page.Close()
	r := h.clean(missing)
	<-r.ended
	if there(h.at("opt/*/libcuda.so.1")) == nil || there(h.at("plugins/*guard*")) == nil || there(usage) == nil {
		return fmt.Errorf("nri-vgpu is still installed: %s", r.log.String())
	}
	return nil
}

// clean runs the program of the container that cleans a node, in a separate process namespace. The
// host's root, with the mounted usage pages, is at node.
func (h *host) clean(missing string) *running {
	h.t.Helper()
	const prepare = `mount --rbind / "$NODE" && { umount --lazy "$USAGE"/*/*/* 2>/dev/null; mount -t proc none /proc; }`
	return h.startIn(ownProcesses, prepare, missing, 0, "nri-vgpu", "uninstall", "--config", h.at("config/config.toml"), "--root", h.at("node"))
}

// endsMPS cleans a node whose first process has started an MPS control daemon.
func (h *host) endsMPS(missing string) error {
	for _, dir := range []string{paths.MPSPipes(h.at("run")), paths.MPSSHM(h.at("run"))} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	h.asFirst(`export CUDA_MPS_PIPE_DIRECTORY=$PIPES
"$0" -f & daemon=$!
for i in $(seq 100); do echo get_server_list | "$0" >/dev/null 2>&1 && break; sleep .05; done
"$@"
for i in $(seq 20); do readlink /proc/$daemon/exe >/dev/null || exit 0; sleep .05; done
exit 1`)
	if err := h.clean(missing).wait(); err != nil {
		return fmt.Errorf("the MPS control daemon still runs: %w", err)
	}
	return nil
}

// removes removes a patcher's fields from a Node.
func (h *host) removes(missing string) error {
	w := &world{t: h.t, node: h.node, report: h.at("run/" + nodereport.FileName), admin: clientOf(h.t, plane.admin)}
	w.register()
	defer w.remove()
	w.patch(`{"metadata":{"annotations":{"nri-vgpu.io/advertised":"` + memory + `"}}}`)
	w.patch(hostile("5"))
	r := h.start(missing, nonRoot, account, "remove", "--config", h.at("config/config.toml"), "--kubeconfig", h.account(account), "--timeout", "5s")
	<-r.ended
	node, err := w.admin.CoreV1().Nodes().Get(h.t.Context(), w.node, metav1.GetOptions{})
	if err == nil && units(node.Status.Capacity) != 0 {
		err = fmt.Errorf("the Node still has resources of ours: %s", r.log.String())
	}
	return err
}

// begins runs the first Job of an uninstallation. The Job deletes the DaemonSets, except the
// DaemonSet that cleans the nodes.
func (h *host) begins(missing string) error {
	namespace := installed(h.t)
	err := h.job("begin", namespace, missing)
	left, listErr := clientOf(h.t, plane.admin).AppsV1().DaemonSets(namespace).List(h.t.Context(), metav1.ListOptions{})
	if err == nil && listErr == nil && len(left.Items) != 1 {
		err = fmt.Errorf("%d DaemonSets are left", len(left.Items))
	}
	return errors.Join(err, listErr)
}

// awaits runs the second Job of an uninstallation. The Job waits until the nodes are clean.
func (h *host) awaits(missing string) error {
	namespace := installed(h.t)
	if err := observed(h.t, namespace); err != nil {
		return err
	}
	return h.job("await", namespace, missing)
}

// job runs the program of a Job of the chart, for an installation in another namespace.
func (h *host) job(step, namespace, missing string) error {
	if err := serviceAccount(h.t, system, cleanup); err != nil {
		return err
	}
	allow(h.t, unique("job"), rbacv1.Subject{Kind: "ServiceAccount", Namespace: system, Name: cleanup}, roles(h.t)[cleanup]...)
	args := append(jobArgs(h.t, cleanup+"-"+step),
		"--namespace", namespace, "--timeout", symptom.String(), "--kubeconfig", h.account(cleanup))
	return h.start(missing, nonRoot, "nri-vgpu", args...).wait()
}

// jobArgs returns the arguments of the chart's Job with a name.
func jobArgs(t *testing.T, name string) []string {
	t.Helper()
	content, err := os.ReadFile(rendered)
	if err != nil {
		t.Fatal(err)
	}
	for document := range bytes.SplitSeq(content, []byte("\n---\n")) {
		var job batchv1.Job
		if err := yaml.Unmarshal(document, &job); err == nil && job.Kind == "Job" && job.Name == name {
			return job.Spec.Template.Spec.Containers[0].Args
		}
	}
	t.Fatalf("the chart has no Job %s", name)
	return nil
}

// TestUninstallKeepsWhatPodsUse checks that the container that cleans a node keeps the files of a
// pod that has processes. The container has a separate process namespace, and sees the node's
// processes through the node's /proc.
func TestUninstallKeepsWhatPodsUse(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	if err := h.install(""); err != nil {
		t.Fatal(err)
	}
	uid := string(uuid.NewUUID())
	files := filepath.Join(paths.Containers(h.at("run")), uid)
	if err := os.MkdirAll(files, 0o755); err != nil {
		t.Fatal(err)
	}
	process := h.launch("sleep", "infinity")
	cgroup := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(cgroup, "cgroup.procs")); err != nil { // version 1
		cgroup = filepath.Join(cgroup, "pids")
	}
	cgroup = filepath.Join(cgroup, "pod"+uid)
	if err := os.Mkdir(cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { process.kill(); _ = os.Remove(cgroup) })
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(fmt.Sprint(process.process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.clean("").wait(), there(files), there(h.at("opt/*/libcuda.so.1"))); err != nil {
		t.Errorf("while the pod has a process: %v", err)
	}
	process.kill()
	if err := h.clean("").wait(); err != nil || there(files) == nil || there(h.at("opt/*")) == nil {
		t.Errorf("when the pod has ended, the pod's files still exist: %v", err)
	}
}
