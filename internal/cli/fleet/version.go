// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
)

const (
	// admission is the group of the API with policies.
	admission = "/apis/admissionregistration.k8s.io/v1"
	// mutating is the resource of the policies that the scheduling mode fit needs.
	mutating = "mutatingadmissionpolicies"
	// fitSuffix ends the name of the chart's policy for the mode fit. The name of the release begins
	// the name.
	fitSuffix = "-fit"
)

// Version describes the features of the cluster's version.
type Version struct {
	// Release is the version of the API server, such as "v1.37.1".
	Release string
	// Policies reports whether the API server serves MutatingAdmissionPolicies.
	Policies bool
	// FitMissing reports whether the chart's policy for the mode fit is missing. FitMissing is false
	// for users who may not list policies.
	FitMissing bool
}

// Version returns the features of the cluster's version.
func (f *Fleet) Version(ctx context.Context) (Version, error) {
	var release version.Info
	if err := f.read(ctx, "/version", &release); err != nil {
		return Version{}, fmt.Errorf("read the version of the API server: %w", err)
	}
	v := Version{Release: release.GitVersion}
	var served metav1.APIResourceList
	if err := f.read(ctx, admission, &served); err != nil {
		return v, fmt.Errorf("list the served resources of %s: %w", admission, err)
	}
	for i := range served.APIResources {
		v.Policies = v.Policies || served.APIResources[i].Name == mutating
	}
	var policies metav1.PartialObjectMetadataList
	if !v.Policies {
		return v, nil
	}
	if err := f.read(ctx, admission+"/"+mutating, &policies); err != nil {
		return v, nil //nolint:nilerr // few users may list policies, and the doctor works without them
	}
	v.FitMissing = !slices.ContainsFunc(policies.Items, func(p metav1.PartialObjectMetadata) bool {
		return p.Labels["app.kubernetes.io/part-of"] == "nri-vgpu" && strings.HasSuffix(p.Name, fitSuffix)
	})
	return v, nil
}

// read reads an object of the API server by its path.
func (f *Fleet) read(ctx context.Context, path string, into any) error {
	body, err := f.api.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}
