// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/nri-vgpu/nri-vgpu/internal/driverlib"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// reported runs reportDriver, and returns the notes of its Events about the node, its log, and the
// directory of its file.
func reported(t *testing.T, v driverlib.Variant, err error) (notes []string, log, runDir string) {
	t.Helper()
	runDir = t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		recorder := events.New(events.Options{Client: client, Node: "node-1", Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		go recorder.Run(ctx)
		var said strings.Builder
		cfg := config.Config{Paths: config.Paths{RunDir: runDir}}
		reportDriver(cfg, v, err, recorder, slog.New(slog.NewTextHandler(&said, nil)))
		synctest.Wait()
		list, err := client.EventsV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list.Items {
			if e.Reason != "VGPUDriverNames" || e.Type != corev1.EventTypeWarning || e.Regarding.Kind != "Node" || e.Regarding.Name != "node-1" {
				t.Errorf("an Event is %+v", e)
			}
			notes = append(notes, e.Note)
		}
		slices.Sort(notes)
		log = said.String()
		cancel()
		time.Sleep(time.Minute) // the recorder ends
	})
	return notes, log, runDir
}

// TestReportDriver checks that the node's Event lists the driver's unknown names, or reports that
// the library could not be read. Without a problem or a driver, reportDriver writes no Event.
func TestReportDriver(t *testing.T) {
	library := func(path, problem string, unknown ...driverlib.Unknown) driverlib.Library {
		return driverlib.Library{Name: "libcuda.so.1", Driver: path, Unknown: unknown, Error: problem}
	}
	const there = "/usr/lib/libcuda.so.1"
	unknown := []driverlib.Unknown{{Name: "cuFrobnicate", Treatment: "forward"}, {Name: "cuMemAllocFrob", Treatment: "refuse"}}
	unread := "containers get the driver's names that nri-vgpu " + version.Version + " knows, as the driver could not be read: no ELF file"
	names := "the driver exports names that nri-vgpu " + version.Version + " does not know; refused: cuMemAllocFrob; passed on: cuFrobnicate"
	for name, c := range map[string]struct {
		library driverlib.Library
		err     error
		notes   []string
		phrase  string // in the log
	}{
		"known names":   {library(there, ""), nil, nil, "made libraries for the driver"},
		"unknown names": {library(there, "", unknown...), nil, []string{names}, "found names of the driver"},
		"no driver":     {library("", "not found"), errors.New("not found"), nil, "found no driver"},
		"unreadable":    {library(there, "no ELF file"), errors.New("no ELF file"), []string{unread}, "failed to make libraries"},
		"both":          {library(there, "no ELF file", unknown...), errors.New("no ELF file"), []string{unread, names}, "found names of the driver"},
	} {
		t.Run(name, func(t *testing.T) {
			v := driverlib.Variant{Dir: "/opt/drivers/1", Libraries: []driverlib.Library{c.library}}
			notes, log, runDir := reported(t, v, c.err)
			if diff := cmp.Diff(c.notes, notes); diff != "" {
				t.Error(diff)
			}
			if !strings.Contains(log, c.phrase) {
				t.Errorf("it logged %q, want %q", log, c.phrase)
			}
			got, err := driverlib.Read(paths.DriverNames(runDir))
			if diff := cmp.Diff(v, got); err != nil || diff != "" {
				t.Errorf("the file for the doctor: %v\n%s", err, diff)
			}
		})
	}
}

// TestReportDriverWithoutItsFile checks that the log reports the failure if reportDriver cannot
// write the file for the doctor.
func TestReportDriverWithoutItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cfg := config.Config{Paths: config.Paths{RunDir: file}}
	reportDriver(cfg, driverlib.Variant{Dir: "/opt/drivers/1"}, nil, nil, slog.New(slog.NewTextHandler(&said, nil)))
	if !strings.Contains(said.String(), "failed to write the driver's names") {
		t.Errorf("it logged %q", &said)
	}
}
